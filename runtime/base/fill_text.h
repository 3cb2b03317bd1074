// fill_text.h: texts with places to fill, where a library for formatting would be the larger part of a small program:
// in what decodes artifacts on phones and in browsers.
#pragma once

#include <concepts>
#include <initializer_list>
#include <string>
#include <string_view>

namespace thimble {

// A text or an integer.
class TextValue {
 public:
  template <std::signed_integral Integer>
  TextValue(Integer value)  // NOLINT: that values are given as they are is the purpose
      : negative_(value < 0),
        number_(negative_ ? -static_cast<unsigned long long>(value) : static_cast<unsigned long long>(value)) {}
  template <std::unsigned_integral Integer>
  TextValue(Integer value) : number_(value) {}                         // NOLINT: see above
  TextValue(std::string_view text) : text_(text), is_text_(true) {}    // NOLINT: see above
  TextValue(const std::string& text) : text_(text), is_text_(true) {}  // NOLINT: see above
  TextValue(const char* text) : text_(text), is_text_(true) {}         // NOLINT: see above

  void append_to(std::string& out) const;

 private:
  std::string_view text_;
  bool is_text_ = false, negative_ = false;
  unsigned long long number_ = 0;
};

// `pattern` with each "{}" replaced by the next value. As many values as places.
std::string fill_places(std::string_view pattern, std::initializer_list<TextValue> values);

template <typename... Values>
std::string fill_text(std::string_view pattern, const Values&... values) {
  return fill_places(pattern, {TextValue(values)...});
}

}  // namespace thimble
