// utf8.cpp: UTF-8 validation, one character at a time.
#include "eval/utf8.h"

namespace thimble {
namespace {

// Length of the well-formed character that `text` (not empty) begins with, 0 when there is none.
size_t character_length(std::string_view text) {
  auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0}; };
  auto is_continuation = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const uint8_t lead = byte(0), second = byte(1);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return is_continuation(1) ? 2 : 0;
  if ((lead & 0xF0) == 0xE0) {
    bool overlong = lead == 0xE0 && second < 0xA0;
    bool surrogate = lead == 0xED && second > 0x9F;
    return is_continuation(1) && is_continuation(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    bool overlong = lead == 0xF0 && second < 0x90;
    bool too_large = lead == 0xF4 && second > 0x8F;
    return is_continuation(1) && is_continuation(2) && is_continuation(3) && !overlong && !too_large ? 4 : 0;
  }
  return 0;
}

}  // namespace

std::optional<uint64_t> first_invalid_utf8(std::string_view text) {
  for (size_t position = 0; position < text.size();) {
    size_t length = character_length(text.substr(position));
    if (length == 0) return position;
    position += length;
  }
  return std::nullopt;
}

}  // namespace thimble
