// fill_text.cpp: see fill_text.h.
#include "runtime/base/fill_text.h"

namespace thimble {

void TextValue::append_to(std::string& out) const {
  if (is_text_) {
    out += text_;
  } else {
    if (negative_) out += '-';
    out += std::to_string(number_);
  }
}

std::string fill_places(std::string_view pattern, std::initializer_list<TextValue> values) {
  std::string out;
  for (const TextValue& value : values) {
    const size_t place = pattern.find("{}");
    out += pattern.substr(0, place);
    value.append_to(out);
    pattern.remove_prefix(place + 2);
  }
  out += pattern;
  return out;
}

}  // namespace thimble
