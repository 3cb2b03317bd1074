// sentencepiece_bpe.h: a SentencePiece model of byte-pair encoding, read without the library: for programs that are to
// be small. Tokens and texts are the library's (tests/eval/tokenizers/sentencepiece_bpe_test.cpp).
#pragma once

#include <array>
#include <unordered_map>

#include "eval/tokenizers/sentencepiece_normalizer.h"
#include "eval/tokenizers/sentencepiece_pieces.h"
#include "eval/tokenizers/tokenizer_model.h"
#include "runtime/base/byte_cursor.h"

namespace thimble {

class SentencePieceBpe final : public TokenizerModel {
 public:
  // `file` is the file's bytes; FormatError naming `path` when it is no usable model, or none of byte-pair encoding, or
  // changes what it decodes.
  SentencePieceBpe(Bytes file, const std::string& path);
  SentencePieceBpe(const SentencePieceBpe&) = delete;

  int64_t vocab_size() const override { return static_cast<int64_t>(model_.pieces.size()); }
  bool may_be_padded() const override { return false; }
  PieceKind kind(Token token) const override;
  const std::string& piece(Token token) const override { return model_.pieces[static_cast<size_t>(token)].text; }
  std::string text_of(Token token) const override;
  bool begins_with_dropped_space(Token token) const override;
  std::optional<Token> bos_id() const override { return bos_; }
  std::optional<Token> separator_id() const override { return std::nullopt; }
  std::vector<Token> encode(std::string_view text) const override;
  std::string decode(std::span<const Token> tokens) const override;

  // What decode() makes of tokens that come one by one, in whole characters.
  class Text;

 private:
  class Encoder;

  [[noreturn]] void fail(const std::string& what) const;
  SentencePieceType type(Token token) const { return model_.pieces[static_cast<size_t>(token)].type; }
  void add_piece(Token id);
  void add_byte(Token id);
  // Of a piece's text; the unknown piece for others.
  Token token_of(std::string_view text) const;

  std::string path_;
  SentencePieces model_;
  SentencePieceNormalizer normalizer_;
  std::unordered_map<std::string_view, Token> text_ids_, other_ids_;  // pieces that text may be, and all others
  std::array<Token, 256> bytes_{};
  size_t byte_pieces_ = 0;
  Token unknown_ = -1;
  std::optional<Token> bos_;
};

class SentencePieceBpe::Text {
 public:
  // The model must outlive it.
  explicit Text(const SentencePieceBpe& model) : model_(&model) {}

  // What the token adds, with bytes before it that began a character. Bytes that are none become U+FFFD each.
  std::string add(Token token);
  // What is left at the end.
  std::string end();

 private:
  std::string take_characters(bool at_end);
  std::string text_of_piece(Token token);

  const SentencePieceBpe* model_;
  std::string bytes_;          // that may yet become a character
  bool is_at_begin_ = true;    // nothing but what has no text
  bool has_left_out_ = false;  // the space that encoding put in front
};

}  // namespace thimble
