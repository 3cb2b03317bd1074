// sentencepiece_model.cpp: wraps sentencepiece::SentencePieceProcessor; its failures become our errors.
#include "eval/tokenizers/sentencepiece_model.h"

#include <sentencepiece_processor.h>

#include <charconv>

#include "eval/tokenizers/tokenizer_check.h"

namespace thimble {
namespace {

class SentencePieceModel : public TokenizerModel {
 public:
  SentencePieceModel(Bytes file, const std::string& path) : path_(path) {
    check_tokenizer_file(file, path);
    std::string reason;
    try {
      auto status = processor_.LoadFromSerializedProto(as_text(file));
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

  int64_t vocab_size() const override { return processor_.GetPieceSize(); }
  bool may_be_padded() const override { return false; }

  PieceKind kind(Token token) const override {
    if (processor_.IsControl(token) || processor_.IsUnknown(token) || processor_.IsUnused(token))
      return PieceKind::kBoundary;
    return processor_.IsByte(token) ? PieceKind::kByte : PieceKind::kText;
  }

  const std::string& piece(Token token) const override { return processor_.IdToPiece(token); }

  std::string text_of(Token token) const override {
    switch (kind(token)) {
      case PieceKind::kBoundary: break;
      case PieceKind::kText: return with_spaces_for_marks(piece(token));
      case PieceKind::kByte: {
        unsigned value = 0;  // the library has checked that the piece reads <0x00> to <0xFF>
        const char* digits = piece(token).data() + 3;
        std::from_chars(digits, digits + 2, value, 16);
        return {static_cast<char>(value)};
      }
    }
    return {};
  }

  bool begins_with_dropped_space(Token token) const override {
    return kind(token) == PieceKind::kText && piece(token).starts_with(kSpaceMark);
  }

  std::optional<Token> bos_id() const override {
    const int id = processor_.bos_id();
    if (id < 0) return std::nullopt;
    return static_cast<Token>(id);
  }
  std::optional<Token> separator_id() const override { return std::nullopt; }

  std::vector<Token> encode(std::string_view text) const override {
    std::vector<int> ids;
    auto status = processor_.Encode(text, &ids);
    if (!status.ok()) throw FormatError(path_, "cannot tokenize the text: " + status.ToString());
    return {ids.begin(), ids.end()};
  }

  std::string decode(std::span<const Token> tokens) const override {
    std::string text;
    auto status = processor_.Decode(std::vector<int>(tokens.begin(), tokens.end()), &text);
    if (!status.ok()) throw FormatError(path_, "cannot decode the tokens: " + status.ToString());
    return text;
  }

 private:
  std::string path_;
  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace

std::unique_ptr<TokenizerModel> read_sentencepiece_model(Bytes file, const std::string& path) {
  return std::make_unique<SentencePieceModel>(file, path);
}

}  // namespace thimble
