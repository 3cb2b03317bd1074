// charsmap_check.h: is a SentencePiece normaliser's character map safe to use?
// The library follows its offsets without looking at bounds, so hostile bytes would read outside the file.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/byte_cursor.h"

namespace thimble {

// The library keeps at most this many matches of one position; a map that can yield more overruns its array.
constexpr int kMaxNestedRules = 32;
// Longest text that one rule may put in (NFKC needs 33 bytes); bounds how much normalising can enlarge a text.
constexpr uint64_t kMaxReplacementBytes = 1024;

// Throws FormatError unless every look-up, whatever the text, stays inside the map and ends.
// charsmap: uint32 trie bytes, a Darts-clone double array of uint32, replacement texts that each end with NUL.
void check_charsmap(Bytes charsmap, const std::string& path);

}  // namespace thimble
