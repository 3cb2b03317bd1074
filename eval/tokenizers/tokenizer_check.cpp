// tokenizer_check.cpp: walks the ModelProto of sentencepiece_model.proto, wire type by wire type, and every path of a
// character map's double-array trie that a text could lead the library along.
#include "eval/tokenizers/tokenizer_check.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string_view>
#include <vector>

#include "eval/tokenizers/charsmap.h"
#include "eval/tokenizers/protobuf_fields.h"
#include "eval/tokenizers/utf8.h"

namespace thimble {
namespace {

constexpr uint32_t kLabels = 256;

class TrieWalk {
 public:
  TrieWalk(const Charsmap& map, const std::string& path)
      : units_(map.units), replacements_(map.replacements), path_(path), nested_(units_.size(), kUnvisited) {}

  // Depth first from the root. A state is the base from which the unit of each next byte is found; the trie may
  // share states (it is a DAWG) but must not loop. nested_[base] becomes the most rules that match on one path on.
  void run() {
    std::vector<Frame> stack;
    enter(stack, units_[0].offset());
    while (!stack.empty()) {
      Frame& frame = stack.back();
      if (frame.next_label == kLabels) {
        nested_[frame.base] = frame.most_nested;
        stack.pop_back();
        continue;
      }
      uint32_t position = frame.base ^ frame.next_label;
      const TrieUnit unit = units_[position];
      if (unit.label() != frame.next_label) {
        ++frame.next_label;
        continue;
      }
      uint32_t child = position ^ unit.offset();
      if (child < nested_.size() && nested_[child] == kOpen) fail("loops");
      if (child >= nested_.size() || nested_[child] == kUnvisited) {
        enter(stack, child);  // invalidates `frame`; this label is looked at again once the child is known
        continue;
      }
      int nested = nested_[child] + (unit.has_leaf() ? 1 : 0);
      if (unit.has_leaf()) check_replacement(units_[child].value());
      if (nested > kMaxNestedRules) fail("has more than " + std::to_string(kMaxNestedRules) + " nested rules");
      frame.most_nested = std::max(frame.most_nested, nested);
      ++frame.next_label;
    }
  }

 private:
  struct Frame {
    uint32_t base;
    uint32_t next_label = 0;
    int most_nested = 0;
  };
  static constexpr int kUnvisited = -1;
  static constexpr int kOpen = -2;

  [[noreturn]] void fail(const std::string& what) const {
    throw FormatError(path_, "normaliser's character map " + what);
  }

  void enter(std::vector<Frame>& stack, uint32_t base) {
    if ((base | (kLabels - 1)) >= units_.size())
      fail("leads to unit " + std::to_string(base | (kLabels - 1)) + ", it has " + std::to_string(units_.size()));
    nested_[base] = kOpen;
    stack.push_back({base});
  }

  void check_replacement(uint32_t start) const {
    if (start >= replacements_.size())
      fail("refers to replacement byte " + std::to_string(start) + ", it has " + std::to_string(replacements_.size()));
    if (replacements_.substr(start, kMaxReplacementBytes).find('\0') == std::string_view::npos)
      fail("holds a replacement text without an end within " + std::to_string(kMaxReplacementBytes) + " B");
  }

  const std::vector<TrieUnit>& units_;
  std::string_view replacements_;
  const std::string& path_;
  std::vector<int> nested_;  // per base
};

// A field may come again (the last one counts), so each occurrence must hold.
struct Piece {
  std::string_view text;
  bool is_user_defined = false;
};

Piece check_piece(Bytes message, int64_t index, const std::string& path) {
  constexpr uint64_t kTextField = 1, kScoreField = 2, kTypeField = 3, kUserDefined = 4;
  Piece piece;
  auto fail = [&](const std::string& what) { throw FormatError(path, "piece " + std::to_string(index) + " " + what); };
  for_each_protobuf_field(message, path, [&](const ProtobufField& field) {
    if (field.number == kTextField && field.wire_type == ProtobufField::kLengthDelimited) {
      piece.text = as_text(field.bytes);
      if (piece.text.size() > kMaxPieceBytes)
        fail("has " + std::to_string(piece.text.size()) + " B, at most " + std::to_string(kMaxPieceBytes) + " allowed");
      if (piece.text.find('\0') != std::string_view::npos) fail("holds a NUL");
      if (auto at = first_invalid_utf8(piece.text)) fail("is not UTF-8 at its byte " + std::to_string(*at));
    } else if (field.number == kScoreField && field.wire_type == ProtobufField::kFixed32) {
      if (!std::isfinite(std::bit_cast<float>(static_cast<uint32_t>(field.value))))
        fail("has a score that is not finite");
    } else if (field.number == kTypeField && field.wire_type == ProtobufField::kVarint) {
      // The library keeps the low 32 bits, and the type before when it does not know a later one.
      piece.is_user_defined |= static_cast<uint32_t>(field.value) == kUserDefined;
    }
  });
  if (piece.text.empty()) fail("has no text");
  return piece;
}

void check_trainer_spec(Bytes message, const std::string& path) {
  constexpr uint64_t kWhitespaceAsSuffix = 24;
  for_each_protobuf_field(message, path, [&](const ProtobufField& field) {
    if (field.number == kWhitespaceAsSuffix && field.value != 0)
      throw FormatError(path, "treat_whitespace_as_suffix is set; bytes are counted for space marks in front only");
  });
}

void check_normalizer_spec(Bytes message, const std::string& path) {
  constexpr uint64_t kCharsmap = 2, kEscapeWhitespaces = 5;
  for_each_protobuf_field(message, path, [&](const ProtobufField& field) {
    if (field.number == kCharsmap && field.wire_type == ProtobufField::kLengthDelimited && !field.bytes.empty())
      check_charsmap(field.bytes, path);
    if (field.number == kEscapeWhitespaces && field.wire_type == ProtobufField::kVarint && field.value == 0)
      throw FormatError(path, "escape_whitespaces is off; bytes are counted for pieces with space marks only");
  });
}

// Symbols that are prefixes of one another all match at one position of a text.
void check_nested_symbols(std::vector<std::string_view> symbols, const std::string& path) {
  std::sort(symbols.begin(), symbols.end());
  std::vector<std::string_view> chain;  // the prefixes of the symbol before
  for (std::string_view symbol : symbols) {
    while (!chain.empty() && !symbol.starts_with(chain.back())) chain.pop_back();
    chain.push_back(symbol);
    if (chain.size() > kMaxNestedSymbols)
      throw FormatError(
          path, "more than " + std::to_string(kMaxNestedSymbols) + " user-defined symbols are prefixes of one another");
  }
}

}  // namespace

void check_charsmap(Bytes charsmap, const std::string& path) { TrieWalk(read_charsmap(charsmap, path), path).run(); }

void check_tokenizer_file(Bytes model, const std::string& path) {
  constexpr uint64_t kPieces = 1, kTrainerSpec = 2, kNormalizerSpec = 3, kDenormalizerSpec = 5;
  if (model.size() > kMaxTokenizerBytes)
    throw FormatError(path, std::to_string(model.size()) + " B, a tokenizer has at most " +
                                std::to_string(kMaxTokenizerBytes) + " B");
  int64_t piece_count = 0;
  std::vector<std::string_view> symbols;
  for_each_protobuf_field(model, path, [&](const ProtobufField& field) {
    if (field.wire_type != ProtobufField::kLengthDelimited) return;
    if (field.number == kPieces) {
      if (piece_count == kMaxPieces)
        throw FormatError(path, "more than " + std::to_string(kMaxPieces) + " pieces; tokens are stored in 16 bits");
      Piece piece = check_piece(field.bytes, piece_count++, path);
      if (piece.is_user_defined) symbols.push_back(piece.text);
    } else if (field.number == kTrainerSpec) {
      check_trainer_spec(field.bytes, path);
    } else if (field.number == kNormalizerSpec || field.number == kDenormalizerSpec) {
      check_normalizer_spec(field.bytes, path);
    }
  });
  if (piece_count == 0) throw FormatError(path, "no pieces; this is not a SentencePiece model");
  check_nested_symbols(std::move(symbols), path);
}

}  // namespace thimble
