// count_text.cpp: see count_text.h.
#include "runtime/base/count_text.h"

namespace thimble {

std::string group_digits(std::string digits) {
  const size_t first = digits.starts_with('-') ? 1 : 0;
  for (size_t at = digits.size(); at > first + 3;) {
    at -= 3;
    digits.insert(at, ",");
  }
  return digits;
}

}  // namespace thimble
