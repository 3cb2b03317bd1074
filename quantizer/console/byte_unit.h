// byte_unit.h: the unit of an axis of bytes.
#pragma once

#include <cstdint>

namespace thimble {

struct ByteUnit {
  double bytes;
  const char* name;
};

// For an axis that ends at about `most` bytes.
inline ByteUnit byte_unit(uint64_t most) {
  return most >= 1'000'000 ? ByteUnit{1e6, "MB (1,000,000 B)"} : ByteUnit{1e3, "kB (1,000 B)"};
}

}  // namespace thimble
