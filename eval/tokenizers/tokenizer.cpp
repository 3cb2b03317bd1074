// tokenizer.cpp: which kind of tokenizer a file is, and what holds for all kinds.
#include "eval/tokenizers/tokenizer.h"

#include <algorithm>

#include "eval/tokenizers/bpe_tokenizer.h"
#include "eval/tokenizers/sentencepiece_model.h"
#include "eval/tokenizers/tokenizer_json.h"
#include "runtime/base/count_text.h"
#include "runtime/base/file.h"
#include "runtime/base/file_kind.h"

namespace thimble {

Tokenizer Tokenizer::load(const std::string& path) {
  MappedFile file(path);
  return Tokenizer(file.bytes(), path);
}

Tokenizer::Tokenizer(Bytes file, const std::string& path) : path_(path) {
  refuse_other_kinds(file, FileUse::kTokenizer, path);
  model_ = holds_tokenizer_json(file) ? read_tokenizer_json(file, path) : read_sentencepiece_model(file, path);
}

std::string Tokenizer::decode(std::span<const Token> tokens) const {
  auto is_padding = [&](Token token) { return token >= vocab_size(); };
  if (std::ranges::none_of(tokens, is_padding)) return model_->decode(tokens);
  std::vector<Token> known;
  std::ranges::remove_copy_if(tokens, std::back_inserter(known), is_padding);
  return model_->decode(known);
}

void check_vocab_size(const Tokenizer& tokenizer, int64_t model_vocab_size, const std::string& model_path) {
  const int64_t pieces = tokenizer.vocab_size();
  if (pieces == model_vocab_size) return;
  bool fits = tokenizer.may_be_padded();
  for (int64_t token = model_vocab_size; fits && token < pieces; ++token)
    fits = tokenizer.kind(static_cast<Token>(token)) == PieceKind::kBoundary;
  if (!fits)
    throw FormatError(tokenizer.path(), "the tokenizer has " + counted(pieces, "piece") + ", the model " + model_path +
                                            " a vocabulary of " + std::to_string(model_vocab_size));
}

void check_tokens(const Tokenizer& tokenizer, std::span<const Token> tokens, int64_t model_vocab_size,
                  const std::string& source) {
  const auto found = std::ranges::find_if(tokens, [&](Token token) { return token >= model_vocab_size; });
  if (found == tokens.end()) return;
  const std::string spelled = *found < tokenizer.vocab_size() ? " ('" + tokenizer.piece(*found) + "')" : "";
  throw FormatError(source, "token " + std::to_string(*found) + spelled + " at position " +
                                std::to_string(found - tokens.begin()) + ", the model's vocabulary has " +
                                std::to_string(model_vocab_size));
}

}  // namespace thimble
