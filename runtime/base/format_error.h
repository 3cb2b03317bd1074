// format_error.h: throwing a FormatError whose text has values in it, in as little code as a place that throws can
// take: what decodes artifacts on phones and in browsers has a hundred of them.
#pragma once

#include "runtime/base/error.h"
#include "runtime/base/fill_text.h"

namespace thimble {

[[noreturn]] void throw_filled(const std::string& where, const char* pattern, std::initializer_list<TextValue> values);

// throw FormatError(where, fill_text(pattern, values...))
template <typename... Values>
[[noreturn]] void throw_format_error(const std::string& where, const char* pattern, const Values&... values) {
  throw_filled(where, pattern, {TextValue(values)...});
}

}  // namespace thimble
