// tokenizer_model.h: what each kind of tokenizer file does for Tokenizer (tokenizer.h), which says what is promised.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/ops/token_sequences.h"

namespace thimble {

enum class PieceKind : uint8_t {
  kText,      // stands for characters, or for bytes that may be a part of one
  kByte,      // stands for one byte, spelled <0x00> to <0xFF>
  kBoundary,  // control, special, unknown or unused: stands for no text
};

// The mark that SentencePiece writes for a space: U+2581 in UTF-8.
constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

// `text` with every mark as the space that it stands for.
std::string with_spaces_for_marks(std::string_view text);

// Tokens that are given are at least 0 and below vocab_size().
class TokenizerModel {
 public:
  virtual ~TokenizerModel() = default;

  virtual int64_t vocab_size() const = 0;
  virtual bool may_be_padded() const = 0;
  virtual PieceKind kind(Token token) const = 0;
  virtual const std::string& piece(Token token) const = 0;
  virtual std::string text_of(Token token) const = 0;
  virtual bool begins_with_dropped_space(Token token) const = 0;
  virtual std::optional<Token> bos_id() const = 0;
  virtual std::optional<Token> separator_id() const = 0;
  virtual std::vector<Token> encode(std::string_view text) const = 0;
  virtual std::string decode(std::span<const Token> tokens) const = 0;
};

// The token in front of a document: BOS, or else the special token that stands between documents, or else token 1 where
// that is a control, unknown or unused piece: one with text would count as bytes.
std::optional<Token> document_start_of(const TokenizerModel& model);

}  // namespace thimble
