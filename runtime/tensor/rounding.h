// rounding.h: float32 values rounded to the formats of the numeric modes, and back. One source for the host and for
// devices; both give the same bits (NaN aside, of which fp16 and bf16 keep that it is one).
#pragma once

#include <cstdint>

#include "runtime/tensor/fixed_point.h"
#include "runtime/tensor/storage_types.h"

namespace thimble {

// kQ131Q115: a round trip through Q1.31, then one through Q1.15. Both clamp to +-0.999.
enum class Format : uint8_t { kFp32, kBf16, kFp16, kQ115, kQ131Q115 };

THIMBLE_HOST_DEVICE inline float rounded_to(Format format, float x) {
  switch (format) {
    case Format::kFp32: return x;
    case Format::kBf16: return StorageTraits<Bf16>::load(StorageTraits<Bf16>::store(x));
    case Format::kFp16: return StorageTraits<Fp16>::load(StorageTraits<Fp16>::store(x));
    case Format::kQ115: return simulate_q115(x);
    case Format::kQ131Q115: return simulate_q115(simulate_q131(x));
  }
  return x;
}

// What becomes of a value that is written: rounded to `value`, then to the type of the memory that it lies in.
struct Rounding {
  Format value = Format::kFp32, storage = Format::kFp32;

  THIMBLE_HOST_DEVICE bool is_exact() const { return value == Format::kFp32 && storage == Format::kFp32; }
  THIMBLE_HOST_DEVICE float operator()(float x) const { return rounded_to(storage, rounded_to(value, x)); }
  bool operator==(const Rounding&) const = default;
};

}  // namespace thimble
