// tokenizer.h: text to tokens and back, and what each token stands for. Two kinds of files are read: a SentencePiece
// model (the library does the work: sentencepiece_model.cpp), and the byte-pair encoding of a tokenizer.json of Hugging
// Face (bpe_tokenizer.cpp).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "eval/tokenizers/tokenizer_model.h"
#include "runtime/base/byte_cursor.h"
#include "runtime/ops/token_sequences.h"

namespace thimble {

class Tokenizer {
 public:
  // Throws IoError or FormatError naming `path`.
  static Tokenizer load(const std::string& path);
  // `file` is the file's bytes; `path` names it in errors.
  Tokenizer(Bytes file, const std::string& path);

  const std::string& path() const { return path_; }
  int64_t vocab_size() const { return model_->vocab_size(); }  // at most kMostTokens; 65,536 of a SentencePiece model
  // May the model's vocabulary be larger? Those of Hugging Face are often rounded up.
  bool may_be_padded() const { return model_->may_be_padded(); }

  // A token from vocab_size() up is padding, a boundary.
  PieceKind kind(Token token) const { return token < vocab_size() ? model_->kind(token) : PieceKind::kBoundary; }
  // As the file spells it. The token must be below vocab_size(), as for the two that follow.
  const std::string& piece(Token token) const { return model_->piece(token); }
  // The bytes that it stands for within a text: spaces for marks; none for a boundary.
  std::string text_of(Token token) const { return model_->text_of(token); }
  // Does it begin with a space that no text has where nothing is before, because encoding puts one in front?
  bool begins_with_dropped_space(Token token) const { return model_->begins_with_dropped_space(token); }

  // What the file wants in front of a text.
  std::optional<Token> bos_id() const { return model_->bos_id(); }
  // Of a file without BOS: the special token that models of this kind see between documents, where it is known.
  std::optional<Token> separator_id() const { return model_->separator_id(); }
  // As tokenizer_model.h has it.
  std::optional<Token> document_start() const { return document_start_of(*model_); }

  // Tokens of one document, without BOS. The model's normaliser may change the text first. FormatError where the text
  // cannot be tokenized; calls from several threads are safe.
  std::vector<Token> encode(std::string_view text) const { return model_->encode(text); }
  // The text of these tokens; bytes that are not UTF-8 become U+FFFD each, boundary tokens nothing (the unknown token
  // of SentencePiece what the library makes of it). Tokens must not be negative.
  std::string decode(std::span<const Token> tokens) const;

 private:
  std::string path_;
  std::unique_ptr<TokenizerModel> model_;
};

// Throws FormatError naming both sizes unless tokenizer and model agree: equal sizes, or, of a tokenizer that may be
// padded, every token from the model's vocabulary up is a boundary. `model_path` names the model.
void check_vocab_size(const Tokenizer& tokenizer, int64_t model_vocab_size, const std::string& model_path);

// Throws FormatError naming `source` and the first token that the model does not have: a tokenizer may know special
// tokens beyond the model's vocabulary, and a text may hold one.
void check_tokens(const Tokenizer& tokenizer, std::span<const Token> tokens, int64_t model_vocab_size,
                  const std::string& source);

}  // namespace thimble
