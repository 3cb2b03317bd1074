// charsmap.h: a SentencePiece normaliser's character map: rules that replace texts, found by their longest match.
// charsmap: uint32 trie bytes, a Darts-clone double array of uint32, replacement texts that each end with NUL.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/byte_cursor.h"

namespace thimble {

// One element of a Darts-clone double array, taken apart.
struct TrieUnit {
  uint32_t bits = 0;
  bool has_leaf() const { return (bits >> 8 & 1) != 0; }
  uint32_t value() const { return bits & 0x7FFFFFFF; }
  uint32_t label() const { return bits & 0x800000FF; }  // of a leaf: never a byte
  uint32_t offset() const { return (bits >> 10) << ((bits & (1U << 9)) >> 6); }
};

struct Charsmap {
  std::vector<TrieUnit> units;
  std::string replacements;

  struct Rule {
    size_t matched = 0;  // bytes
    std::string_view replacement;
  };
  // The rule of the longest text that `text` begins with. Only of a map that check_charsmap() has accepted.
  std::optional<Rule> longest_rule(std::string_view text) const;
};

// Takes the bytes apart: FormatError(path) where the sizes do not agree. What the units lead to is not looked at.
Charsmap read_charsmap(Bytes charsmap, const std::string& path);

}  // namespace thimble
