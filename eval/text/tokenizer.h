// tokenizer.h: a SentencePiece model (the library does the work): text to tokens and back, and the kinds of pieces.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/byte_cursor.h"

#include "runtime/ops/token_sequences.h"

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace thimble {

enum class PieceKind : uint8_t {
  kText,      // stands for its own characters, U+2581 for a space
  kByte,      // stands for one byte, spelled <0x00> to <0xFF>
  kBoundary,  // control, unknown or unused: stands for no text
};

// The mark that SentencePiece writes for a space: U+2581 in UTF-8.
constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

class Tokenizer {
 public:
  // Throws IoError or FormatError naming `path`.
  static Tokenizer load(const std::string& path);
  // `model` is the file's bytes; `path` names it in errors.
  Tokenizer(Bytes model, const std::string& path);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  const std::string& path() const { return path_; }
  int64_t vocab_size() const;  // at most 65,536
  PieceKind kind(Token token) const;
  const std::string& piece(Token token) const;
  std::optional<Token> bos_id() const;

  // Tokens of one document, without BOS. The model's normaliser may change the text first.
  std::vector<Token> encode(std::string_view text) const;
  // The text of these tokens; bytes that are not UTF-8 become U+FFFD each, boundary tokens what the library makes of
  // them. Every token must be below vocab_size().
  std::string decode(std::span<const Token> tokens) const;

 private:
  std::string path_;
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
};

// Throws FormatError naming both sizes unless tokenizer and model agree. `model_path` names the model.
void check_vocab_size(const Tokenizer& tokenizer, int64_t model_vocab_size, const std::string& model_path);

}  // namespace thimble
