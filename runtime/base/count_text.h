// count_text.h: counts in sentences.
#pragma once

#include <concepts>
#include <string>
#include <string_view>

namespace thimble {

// "29,951,068"
template <std::integral Count>
std::string count_text(Count count) {
  std::string digits = std::to_string(count);
  const size_t first = digits.starts_with('-') ? 1 : 0;
  for (size_t at = digits.size(); at > first + 3;) digits.insert(at -= 3, ",");
  return digits;
}

// "1 token", "0 tokens", "21,454 tokens". `plural` is for nouns that do not take an s.
template <std::integral Count>
std::string counted(Count count, std::string_view noun, std::string_view plural = {}) {
  std::string text = count_text(count) + " ";
  if (count == 1 || plural.empty()) text += noun;
  if (count != 1) text += plural.empty() ? "s" : plural;
  return text;
}

}  // namespace thimble
