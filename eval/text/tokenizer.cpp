// tokenizer.cpp: wraps sentencepiece::SentencePieceProcessor; its failures become our errors.
#include "eval/text/tokenizer.h"

#include <sentencepiece_processor.h>

#include <cassert>

#include "eval/text/tokenizer_check.h"
#include "runtime/base/count_text.h"
#include "runtime/base/file.h"
#include "runtime/base/file_kind.h"

namespace thimble {

Tokenizer Tokenizer::load(const std::string& path) {
  MappedFile file(path);
  return Tokenizer(file.bytes(), path);
}

Tokenizer::Tokenizer(Bytes model, const std::string& path)
    : path_(path), processor_(std::make_unique<sentencepiece::SentencePieceProcessor>()) {
  refuse_other_kinds(model, FileUse::kTokenizer, path);
  check_tokenizer_file(model, path);
  std::string reason;
  try {
    auto status = processor_->LoadFromSerializedProto(as_text(model));
    if (status.ok()) return;
    reason = status.ToString();
    // LCOV_EXCL_START: its trie builder throws; no file is known that gets so far and makes it throw
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& failure) {
    reason = failure.what();
  }
  // LCOV_EXCL_STOP
  throw FormatError(path, "not a usable SentencePiece model: " + reason);
}

Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

int64_t Tokenizer::vocab_size() const { return processor_->GetPieceSize(); }

PieceKind Tokenizer::kind(Token token) const {
  assert(token < vocab_size());
  if (processor_->IsControl(token) || processor_->IsUnknown(token) || processor_->IsUnused(token))
    return PieceKind::kBoundary;
  return processor_->IsByte(token) ? PieceKind::kByte : PieceKind::kText;
}

const std::string& Tokenizer::piece(Token token) const {
  assert(token < vocab_size());
  return processor_->IdToPiece(token);
}

std::optional<Token> Tokenizer::bos_id() const {
  int id = processor_->bos_id();
  if (id < 0) return std::nullopt;
  return static_cast<Token>(id);
}

std::vector<Token> Tokenizer::encode(std::string_view text) const {
  std::vector<int> ids;
  auto status = processor_->Encode(text, &ids);
  if (!status.ok()) throw FormatError(path_, "cannot tokenize the text: " + status.ToString());
  return {ids.begin(), ids.end()};
}

std::string Tokenizer::decode(std::span<const Token> tokens) const {
  std::string text;
  auto status = processor_->Decode(std::vector<int>(tokens.begin(), tokens.end()), &text);
  if (!status.ok()) throw FormatError(path_, "cannot decode the tokens: " + status.ToString());
  return text;
}

void check_vocab_size(const Tokenizer& tokenizer, int64_t model_vocab_size, const std::string& model_path) {
  if (tokenizer.vocab_size() != model_vocab_size)
    throw FormatError(tokenizer.path(), "the tokenizer has " + counted(tokenizer.vocab_size(), "piece") +
                                            ", the model " + model_path + " a vocabulary of " +
                                            std::to_string(model_vocab_size));
}

}  // namespace thimble
