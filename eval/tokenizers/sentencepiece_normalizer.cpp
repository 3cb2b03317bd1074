// sentencepiece_normalizer.cpp: the steps of the library's normaliser, in its order.
#include "eval/tokenizers/sentencepiece_normalizer.h"

#include <algorithm>
#include <functional>

#include "eval/tokenizers/tokenizer_model.h"
#include "eval/tokenizers/utf8.h"

namespace thimble {

void WholeSymbols::add(std::string_view symbol) {
  symbols_.emplace(symbol);
  const auto at = std::lower_bound(lengths_.begin(), lengths_.end(), symbol.size(), std::greater<>());
  if (at == lengths_.end() || *at != symbol.size()) lengths_.insert(at, symbol.size());
}

size_t WholeSymbols::match(std::string_view text) const {
  for (size_t length : lengths_)
    if (length <= text.size() && symbols_.contains(std::string(text.substr(0, length)))) return length;
  return 0;
}

SentencePieceNormalizer::SentencePieceNormalizer(const SentencePieces& model, const std::string& path)
    : adds_space_(model.adds_space), trims_spaces_(model.trims_spaces) {
  if (model.has_charsmap()) charsmap_ = read_charsmap(model.charsmap, path);
  for (const SentencePiece& piece : model.pieces)
    if (piece.type == SentencePieceType::kUserDefined) symbols_.add(piece.text);
}

Charsmap::Rule SentencePieceNormalizer::first_of(std::string_view text) const {
  if (const size_t length = symbols_.match(text); length > 0) return {length, text.substr(0, length)};
  if (!charsmap_.units.empty())
    if (const auto rule = charsmap_.longest_rule(text)) return *rule;
  const size_t length = decode_utf8(text).length;
  if (length == 0) return {1, kReplacementCharacter};
  return {length, text.substr(0, length)};
}

std::string SentencePieceNormalizer::normalized(std::string_view text) const {
  if (trims_spaces_) {
    while (!text.empty()) {
      const Charsmap::Rule first = first_of(text);
      if (first.replacement != " ") break;
      text.remove_prefix(first.matched);
    }
  }
  std::string result;
  if (text.empty()) return result;
  if (adds_space_) result += kSpaceMark;
  bool follows_space = trims_spaces_;
  while (!text.empty()) {
    auto [matched, part] = first_of(text);
    while (follows_space && part.starts_with(' ')) part.remove_prefix(1);
    for (char c : part) {
      if (c == ' ')
        result += kSpaceMark;
      else
        result += c;
    }
    if (!part.empty()) follows_space = part.ends_with(' ');
    if (!trims_spaces_) follows_space = false;
    text.remove_prefix(matched);
  }
  while (trims_spaces_ && result.ends_with(kSpaceMark)) result.resize(result.size() - kSpaceMark.size());
  return result;
}

}  // namespace thimble
