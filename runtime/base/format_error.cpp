// format_error.cpp: see format_error.h.
#include "runtime/base/format_error.h"

namespace thimble {

void throw_filled(const std::string& where, const char* pattern, std::initializer_list<TextValue> values) {
  throw FormatError(where, fill_places(pattern, values));
}

}  // namespace thimble
