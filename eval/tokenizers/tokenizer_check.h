// tokenizer_check.h: the limits a SentencePiece model file must keep before the library sees its bytes.
// Looks at the protobuf structure, the pieces and the character maps; what pieces mean is left to the library.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/byte_cursor.h"

namespace thimble {

constexpr uint64_t kMaxTokenizerBytes = 16 << 20;
constexpr int64_t kMaxPieces = 65536;  // tokens are stored in 16 bits
constexpr uint64_t kMaxPieceBytes = 4096;
// The library keeps at most this many user-defined symbols that begin at one position.
constexpr int kMaxNestedSymbols = 64;

// Throws FormatError naming `path` and the offending piece or field. Also refuses two settings under which the bytes
// of a piece cannot be counted: a space mark behind the word, and spaces that are not marked at all.
void check_tokenizer_file(Bytes model, const std::string& path);

// The library keeps at most this many matches of one position; a map that can yield more overruns its array.
constexpr int kMaxNestedRules = 32;
// Longest text that one rule may put in (NFKC needs 33 bytes); bounds how much normalising can enlarge a text.
constexpr uint64_t kMaxReplacementBytes = 1024;

// Throws FormatError unless every look-up in a normaliser's character map, whatever the text, stays inside the map and
// ends: the library follows its offsets without looking at bounds, so hostile bytes would read outside the file.
// charsmap.h says what the bytes are.
void check_charsmap(Bytes charsmap, const std::string& path);

}  // namespace thimble
