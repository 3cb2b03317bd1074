// fill_text.h: texts with places to fill, where a library for formatting would be the larger part of a small program:
// in what decodes artifacts on phones and in browsers.
#pragma once

#include <concepts>
#include <string>
#include <string_view>

namespace thimble {

inline void append_text(std::string& out, std::string_view text) { out += text; }
template <std::integral Integer>
void append_text(std::string& out, Integer value) {
  out += std::to_string(value);
}

// `pattern` with each "{}" replaced by the next value: a text or an integer. As many values as places.
template <typename... Values>
std::string fill_text(std::string_view pattern, const Values&... values) {
  std::string out;
  const auto fill_next = [&](const auto& value) {
    const size_t place = pattern.find("{}");
    out += pattern.substr(0, place);
    append_text(out, value);
    pattern.remove_prefix(place + 2);
  };
  (fill_next(values), ...);
  out += pattern;
  return out;
}

}  // namespace thimble
