// checked.h: arithmetic on sizes that come from files. Overflow is a FormatError naming the place, never a wrap.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/base/format_error.h"

namespace thimble {

// `where` is "path" or "path: object", and starts the error message.
inline uint64_t mul_or_throw(uint64_t a, uint64_t b, const std::string& where) {
  uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) throw_format_error(where, "{} x {} overflows 64 bits", a, b);
  return product;
}

inline uint64_t add_or_throw(uint64_t a, uint64_t b, const std::string& where) {
  uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) throw_format_error(where, "{} + {} overflows 64 bits", a, b);
  return sum;
}

// Product of the dimensions; 1 for a scalar. Negative dimensions are errors.
inline uint64_t element_count_or_throw(std::span<const int64_t> shape, const std::string& where) {
  uint64_t count = 1;
  for (int64_t dimension : shape) {
    if (dimension < 0) throw_format_error(where, "dimension {}, must not be negative", dimension);
    count = mul_or_throw(count, static_cast<uint64_t>(dimension), where);
  }
  return count;
}

}  // namespace thimble
