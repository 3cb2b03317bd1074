// utf8.h: texts in UTF-8 (Unicode 15, table 3-7: no overlong forms, no surrogates, nothing above U+10FFFF).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace thimble {

// What stands for bytes that are no character: U+FFFD.
constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

struct CodePoint {
  uint32_t value = 0;
  size_t length = 0;  // in bytes; 0: these bytes begin no well-formed character
};

// The character that `text` (not empty) begins with.
CodePoint decode_utf8(std::string_view text);

// Position of the first byte that does not begin a well-formed character; nothing when all of `text` is UTF-8.
std::optional<uint64_t> first_invalid_utf8(std::string_view text);

}  // namespace thimble
