// tokenizer_builder.h: writes SentencePiece models by hand, good and bad ones (sentencepiece_model.proto).
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "eval/tokenizers/tokenizer.h"
#include "runtime/base/byte_cursor.h"

namespace thimble::testing {

// Appends protobuf fields to a string.
class ProtoWriter {
 public:
  ProtoWriter& varint(uint32_t number, uint64_t value) {
    raw_varint(uint64_t{number} << 3);
    return raw_varint(value);
  }
  ProtoWriter& text(uint32_t number, std::string_view value) {
    raw_varint(uint64_t{number} << 3 | 2);
    raw_varint(value.size());
    out_ += value;
    return *this;
  }
  ProtoWriter& fixed32(uint32_t number, float value) {
    raw_varint(uint64_t{number} << 3 | 5);
    auto bits = std::bit_cast<uint32_t>(value);
    for (int i = 0; i < 4; ++i) out_ += static_cast<char>(bits >> (8 * i) & 0xFF);
    return *this;
  }
  ProtoWriter& raw_varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_ += static_cast<char>(value | 0x80);
    out_ += static_cast<char>(value);
    return *this;
  }
  const std::string& bytes() const { return out_; }

 private:
  std::string out_;
};

enum class PieceType : uint64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

struct PieceSpec {
  std::string text;
  PieceType type = PieceType::kNormal;
  float score = -1;
};

struct ModelSpec {
  std::vector<PieceSpec> pieces;
  bool byte_fallback = false;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  bool whitespace_as_suffix = false;
  std::string charsmap;
  std::string denormalizer_charsmap;
  std::optional<uint64_t> model_type;  // 2: byte-pair encoding

  std::string bytes() const {
    ProtoWriter model;
    for (const PieceSpec& piece : pieces)
      model.text(1, ProtoWriter()
                        .text(1, piece.text)
                        .fixed32(2, piece.score)
                        .varint(3, static_cast<uint64_t>(piece.type))
                        .bytes());
    ProtoWriter trainer;
    if (model_type) trainer.varint(3, *model_type);
    trainer.varint(24, whitespace_as_suffix).varint(35, byte_fallback);
    ProtoWriter normalizer;
    if (!charsmap.empty()) normalizer.text(2, charsmap);
    normalizer.varint(3, add_dummy_prefix).varint(4, remove_extra_whitespaces).varint(5, escape_whitespaces);
    model.text(2, trainer.bytes()).text(3, normalizer.bytes());
    if (!denormalizer_charsmap.empty()) model.text(5, ProtoWriter().text(2, denormalizer_charsmap).bytes());
    return model.bytes();
  }
  Tokenizer tokenizer() const { return Tokenizer(as_bytes_of(bytes()), "small.model"); }
};

// <unk> 0, <s> 1, </s> 2, then the 256 byte pieces as 3 + byte, then `more`.
inline ModelSpec byte_fallback_model(const std::vector<PieceSpec>& more) {
  ModelSpec spec;
  spec.byte_fallback = true;
  spec.pieces = {{"<unk>", PieceType::kUnknown}, {"<s>", PieceType::kControl}, {"</s>", PieceType::kControl}};
  constexpr char kHex[] = "0123456789ABCDEF";
  for (int byte = 0; byte < 256; ++byte)
    spec.pieces.push_back({std::string("<0x") + kHex[byte >> 4] + kHex[byte & 15] + ">", PieceType::kByte, 0});
  spec.pieces.insert(spec.pieces.end(), more.begin(), more.end());
  return spec;
}

constexpr Token kBosToken = 1;
constexpr Token kFirstByteToken = 3;
constexpr Token kFirstTextToken = kFirstByteToken + 256;

// Double-array unit of a Darts-clone trie, label and offset to its children (offset below 2^21).
inline uint32_t trie_unit(uint32_t label, uint32_t offset, bool has_leaf = false) {
  return label | (has_leaf ? 1U << 8 : 0U) | offset << 10;
}
inline uint32_t trie_leaf(uint32_t value) { return value | 1U << 31; }

inline std::string charsmap_of(const std::vector<uint32_t>& units, std::string_view replacements) {
  ByteVector out;
  append_little_endian(out, static_cast<uint32_t>(units.size() * 4));
  for (uint32_t unit : units) append_little_endian(out, unit);
  append_bytes(out, as_bytes_of(replacements));
  return std::string(as_text(out));
}

// Two blocks of 256 units; the root's children are found at base 256. Rule: "x" becomes "yy".
struct TrieParts {
  std::vector<uint32_t> units = std::vector<uint32_t>(512, 0xFFU | 1U << 31);  // labels that never match
  std::string replacements = std::string("yy\0", 3);
  TrieParts() {
    units[0] = trie_unit(0, 256);
    // At 256 ^ 'x', its children's base is 256 ^ 'x' ^ offset = 0: within the first block, leaf at unit 0 would
    // clash with the root, so it points to base 1 instead.
    units[256 ^ 'x'] = trie_unit('x', (256 ^ 'x') ^ 1, true);
    units[1] = trie_leaf(0);
  }
  std::string charsmap() const { return charsmap_of(units, replacements); }
};

}  // namespace thimble::testing
