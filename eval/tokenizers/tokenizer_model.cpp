// tokenizer_model.cpp: what holds for all kinds of tokenizers.
#include "eval/tokenizers/tokenizer_model.h"

namespace thimble {

std::string with_spaces_for_marks(std::string_view text) {
  std::string result;
  for (size_t at = text.find(kSpaceMark); at != std::string_view::npos; at = text.find(kSpaceMark)) {
    result.append(text.substr(0, at)) += ' ';
    text.remove_prefix(at + kSpaceMark.size());
  }
  return result.append(text);
}

std::optional<Token> document_start_of(const TokenizerModel& model) {
  constexpr Token kUsualBos = 1;
  if (auto bos = model.bos_id()) return bos;
  if (auto separator = model.separator_id()) return separator;
  if (model.vocab_size() > kUsualBos && model.kind(kUsualBos) == PieceKind::kBoundary) return kUsualBos;
  return std::nullopt;
}

}  // namespace thimble
