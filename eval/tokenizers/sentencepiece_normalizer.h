// sentencepiece_normalizer.h: what SentencePiece does to a text before it is cut into pieces: characters are replaced
// by rules, spaces at the ends and all but one of several may go, the others become marks, one may be put in front.
#pragma once

#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "eval/tokenizers/charsmap.h"
#include "eval/tokenizers/sentencepiece_pieces.h"

namespace thimble {

// Texts that stay whole: user-defined pieces.
class WholeSymbols {
 public:
  void add(std::string_view symbol);
  // Bytes of the longest one that `text` begins with; 0: none.
  size_t match(std::string_view text) const;

 private:
  std::unordered_set<std::string> symbols_;
  std::vector<size_t> lengths_;  // descending, each once
};

class SentencePieceNormalizer {
 public:
  explicit SentencePieceNormalizer(const SentencePieces& model, const std::string& path);

  const WholeSymbols& symbols() const { return symbols_; }
  // Bytes that are not UTF-8 become U+FFFD each.
  std::string normalized(std::string_view text) const;

 private:
  // What stands first in a text, and what becomes of it.
  Charsmap::Rule first_of(std::string_view text) const;

  bool adds_space_, trims_spaces_;
  Charsmap charsmap_;  // without units: no rules
  WholeSymbols symbols_;
};

}  // namespace thimble
