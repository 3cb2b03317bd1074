// utf8.h: is a text UTF-8? (Unicode 15, table 3-7: no overlong forms, no surrogates, nothing above U+10FFFF.)
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace thimble {

// Position of the first byte that does not begin a well-formed character; nothing when all of `text` is UTF-8.
std::optional<uint64_t> first_invalid_utf8(std::string_view text);

}  // namespace thimble
