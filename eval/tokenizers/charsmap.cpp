// charsmap.cpp: see charsmap.h.
#include "eval/tokenizers/charsmap.h"

namespace thimble {

std::optional<Charsmap::Rule> Charsmap::longest_rule(std::string_view text) const {
  std::optional<Rule> longest;
  uint32_t position = units[0].offset();
  for (size_t i = 0; i < text.size(); ++i) {
    const auto label = static_cast<uint8_t>(text[i]);
    position ^= label;
    const TrieUnit unit = units[position];
    if (unit.label() != label) break;
    position ^= unit.offset();
    if (unit.has_leaf()) longest = {i + 1, replacements.c_str() + units[position].value()};
  }
  return longest;
}

Charsmap read_charsmap(Bytes charsmap, const std::string& path) {
  ByteCursor cursor(charsmap, path);
  const auto trie_bytes = cursor.read<uint32_t>("size of the character map's trie");
  if (trie_bytes == 0 || trie_bytes % sizeof(uint32_t) != 0)
    throw FormatError(
        path, "the character map's trie has " + std::to_string(trie_bytes) + " B, must be a positive multiple of 4");
  ByteCursor trie(cursor.take(trie_bytes, "the character map's trie"), path);
  Charsmap map;
  map.units.resize(trie_bytes / sizeof(uint32_t));
  for (TrieUnit& unit : map.units) unit.bits = trie.read<uint32_t>("trie unit");
  map.replacements = as_text(cursor.take(cursor.remaining(), "replacement texts"));
  return map;
}

}  // namespace thimble
