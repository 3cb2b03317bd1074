// rounding.h: float32 values rounded to the formats of the numeric modes, and back. One source for the host and for
// devices; both give the same bits (NaN aside, of which fp16 and bf16 keep that it is one).
//
// Q1.15 and Q1.31 codes are the integers of [-1, 1) in steps of 2^-15 and 2^-31:
//   code = round_half_to_even(clamp(x, -limit, limit) * 2^15)     limit = float32(0.999)
// Infinities clamp like any large number. NaN, which the format does not have, becomes 0, and so does -0. Codes that
// come of floats lie in [-32735, 32735] (Q1.15) and [-2145336192, 2145336192] (Q1.31); other codes can be read, and
// clamp to these when they are written again.
#pragma once

#include <cmath>
#include <cstdint>

#include "runtime/tensor/storage_types.h"

namespace thimble {

constexpr float kFixedPointLimit = 0.999f;

// x within the limits; NaN becomes 0.
THIMBLE_HOST_DEVICE inline float clamp_to_fixed_point(float x) {
  if (x > kFixedPointLimit) return kFixedPointLimit;
  if (x < -kFixedPointLimit) return -kFixedPointLimit;
  return x == x ? x : 0.0f;
}

// Scaling by a power of two is exact, also of subnormals, so that the one rounding is rintf's (nearest, ties to even).
THIMBLE_HOST_DEVICE inline int16_t float_to_q115(float x) {
  return static_cast<int16_t>(rintf(clamp_to_fixed_point(x) * 0x1p15f));
}
THIMBLE_HOST_DEVICE inline int32_t float_to_q131(float x) {
  return static_cast<int32_t>(rintf(clamp_to_fixed_point(x) * 0x1p31f));
}

// Exact.
THIMBLE_HOST_DEVICE inline float float_from_q115(int16_t code) { return static_cast<float>(code) * 0x1p-15f; }
// Rounded to nearest even where a code has more than 24 significant bits; those that come of floats have not.
THIMBLE_HOST_DEVICE inline float float_from_q131(int32_t code) { return static_cast<float>(code) * 0x1p-31f; }

// What is left of x after a round trip through the format.
THIMBLE_HOST_DEVICE inline float simulate_q115(float x) { return float_from_q115(float_to_q115(x)); }
THIMBLE_HOST_DEVICE inline float simulate_q131(float x) { return float_from_q131(float_to_q131(x)); }

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
