// utf8.cpp: one character of UTF-8 at a time.
#include "eval/tokenizers/utf8.h"

namespace thimble {

CodePoint decode_utf8(std::string_view text) {
  const auto lead = static_cast<uint8_t>(text[0]);
  const size_t length = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
  if (length == 0 || length > text.size()) return {};
  uint32_t value = length == 1 ? lead : lead & (0x7fu >> length);
  for (size_t i = 1; i < length; ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    if ((byte & 0xc0) != 0x80) return {};
    value = value << 6 | (byte & 0x3f);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = value >= 0xd800 && value < 0xe000;
  if (value < kLeast[length] || is_surrogate || value > 0x10ffff) return {};
  return {value, length};
}

std::optional<uint64_t> first_invalid_utf8(std::string_view text) {
  for (size_t position = 0; position < text.size();) {
    const size_t length = decode_utf8(text.substr(position)).length;
    if (length == 0) return position;
    position += length;
  }
  return std::nullopt;
}

}  // namespace thimble
