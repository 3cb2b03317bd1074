// nvfp4.h: the numbers of NVFP4: E2M1 elements and the UE4M3 scales of their blocks, to and from float32, and staging.
// One source for the host and for devices; both give the same bits.
//
//   E2M1   s eem     0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives; neither infinity nor NaN
//   UE4M3  eeee mmm  subnormals below 2^-6 in steps of 2^-9, then 2^(e - 7) * (1 + m / 8) up to 448; 0x7f is NaN
//
// Rounding is to nearest, ties to even. E2M1: larger magnitudes and infinities saturate at 6, NaN becomes 6 with the
// sign of the NaN dropped (as cvt.rn.satfinite does), -0 and negatives that round to 0 become 0b1000. UE4M3: larger
// numbers and infinity saturate at 448, negatives become 0, NaN stays NaN.
//
// Staging makes NVFP4 of float32 elements:
//   tensor scale = amax / (6 * 448);   s_b = ue4m3(amax_b / 6 / tensor scale);   code = e2m1(x / (s_b * tensor scale))
// amax is the largest |x| of what shares the tensor scale, amax_b that of block b. A block whose scale is 0 becomes 0.
// NaN and infinities make the tensor scale or the scale of their block NaN, and so every product with them.
#pragma once

#include <cmath>
#include <cstdint>

#include "runtime/tensor/host_device.h"

namespace thimble {

constexpr int kNvfp4Block = 16;        // elements along K that share a scale
constexpr uint8_t kE2m1Sign = 0x8;     // of a code of 4 bits
constexpr uint8_t kE2m1MaxCode = 0x7;  // 6
constexpr float kE2m1Max = 6;
constexpr uint8_t kUe4m3MaxCode = 0x7e;  // 448
constexpr uint8_t kUe4m3Nan = 0x7f;
constexpr float kUe4m3Max = 448;

// The largest tensor scale with which every value is finite.
constexpr float kMaxNvfp4TensorScale = 0x1p116f;
static_assert(double{kMaxNvfp4TensorScale} * kE2m1Max * kUe4m3Max < 0x1.fffffep127);
constexpr bool is_nvfp4_tensor_scale(float scale) { return scale > 0 && scale <= kMaxNvfp4TensorScale; }

// Of a row: bytes of its codes, two to a byte, and blocks.
THIMBLE_HOST_DEVICE constexpr int64_t nvfp4_row_bytes(int64_t columns) { return (columns + 1) / 2; }
THIMBLE_HOST_DEVICE constexpr int64_t nvfp4_blocks(int64_t columns) {
  return (columns + kNvfp4Block - 1) / kNvfp4Block;
}

// The magnitude code (0 to 7) nearest to x >= 0, of float or double; 7 for NaN.
template <typename Real>
THIMBLE_HOST_DEVICE inline uint8_t e2m1_magnitude(Real x) {
  // Each tie goes to the even code: up from 0.75, 1.75 and 3.5, down from the others.
  const int below = (x <= Real(0.25)) + (x < Real(0.75)) + (x <= Real(1.25)) + (x < Real(1.75)) + (x <= Real(2.5)) +
                    (x < Real(3.5)) + (x <= Real(5));
  return static_cast<uint8_t>(kE2m1MaxCode - below);
}

THIMBLE_HOST_DEVICE inline uint8_t e2m1_from_float(float x) {
  if (x != x) return kE2m1MaxCode;
  const bool negative = copysignf(1.0f, x) < 0;
  return static_cast<uint8_t>(e2m1_magnitude(fabsf(x)) | (negative ? kE2m1Sign : 0));
}

// Exact. Only the lowest 4 bits count.
THIMBLE_HOST_DEVICE inline float float_from_e2m1(uint8_t code) {
  const int exponent = (code >> 1) & 3, mantissa = code & 1;
  const float magnitude =
      exponent == 0 ? 0.5f * static_cast<float>(mantissa) : static_cast<float>((2 + mantissa) << exponent) * 0.25f;
  return code & kE2m1Sign ? -magnitude : magnitude;
}

// float_from_e2m1(e2m1_from_float(x)), without its code; of NaN 6 with any sign.
THIMBLE_HOST_DEVICE inline float rounded_to_e2m1(float x) {
  const float size = fabsf(x);
  const float low = size <= 0.25f ? 0.0f : size < 0.75f ? 0.5f : size <= 1.25f ? 1.0f : 1.5f;
  const float high = size <= 2.5f ? 2.0f : size < 3.5f ? 3.0f : size <= 5 ? 4.0f : 6.0f;
  return copysignf(size < 1.75f ? low : high, x);
}

THIMBLE_HOST_DEVICE inline uint8_t ue4m3_from_float(float x) {
  if (x != x) return kUe4m3Nan;
  if (!(x > 0)) return 0;
  if (x >= kUe4m3Max) return kUe4m3MaxCode;
  int exponent = 0;
  frexpf(x, &exponent);  // x in [2^(exponent - 1), 2^exponent)
  if (exponent < -5) exponent = -5;
  // Steps of 2^(exponent - 4): 8 to 16 of them, fewer in subnormals. 16 carries into the exponent by itself.
  const int steps = static_cast<int>(rintf(ldexpf(x, 4 - exponent)));
  const int code = (exponent + 5) * 8 + steps;
  return static_cast<uint8_t>(code < kUe4m3MaxCode ? code : kUe4m3MaxCode);
}

// Exact. Codes above kUe4m3MaxCode are NaN.
THIMBLE_HOST_DEVICE inline float float_from_ue4m3(uint8_t code) {
  if (code > kUe4m3MaxCode) return NAN;
  if (code < 8) return static_cast<float>(code) * 0x1p-9f;
  return ldexpf(static_cast<float>(8 + (code & 7)), (code >> 3) - 10);
}

// The larger magnitude, or NaN where there is one.
THIMBLE_HOST_DEVICE inline float nvfp4_amax(float amax, float x) {
  const float magnitude = fabsf(x);
  return magnitude > amax || magnitude != magnitude ? magnitude : amax;
}
THIMBLE_HOST_DEVICE inline float nvfp4_amax(const float* x, int64_t count) {
  float amax = 0;
  for (int64_t i = 0; i < count; ++i) amax = nvfp4_amax(amax, x[i]);
  return amax;
}

// The tensor scale with which a block that reaches `amax` has the scale 448, at least the smallest normal float32; 1
// when amax is 0. Rounded down, the scale of that block could exceed 448 by half a unit, which saturates: no harm.
THIMBLE_HOST_DEVICE inline float nvfp4_tensor_scale(float amax) {
  if (amax == 0) return 1;
  const float scale = amax / (kE2m1Max * kUe4m3Max);
  return scale < 0x1p-126f ? 0x1p-126f : scale;
}

// UE4M3, such that the block's largest magnitude becomes 6.
THIMBLE_HOST_DEVICE inline uint8_t nvfp4_block_scale(float amax, float tensor_scale) {
  return ue4m3_from_float(amax / kE2m1Max / tensor_scale);
}

// `step`: of the block, its scale times the tensor scale in float32.
THIMBLE_HOST_DEVICE inline uint8_t nvfp4_element(float x, float step) {
  return step == 0 ? uint8_t{0} : e2m1_from_float(x / step);
}

// The value that remains of x in a block of this scale.
THIMBLE_HOST_DEVICE inline float nvfp4_value(float x, float block_scale, float tensor_scale) {
  const float step = block_scale * tensor_scale;
  return (step == 0 ? 0 : rounded_to_e2m1(x / step)) * block_scale * tensor_scale;
}

// The values that remain of a row of n elements, which may be written over it.
inline void nvfp4_values(const float* x, int64_t n, float tensor_scale, float* values) {
  for (int64_t first = 0; first < n; first += kNvfp4Block) {
    const int64_t count = n - first < kNvfp4Block ? n - first : kNvfp4Block;
    const float scale = float_from_ue4m3(nvfp4_block_scale(nvfp4_amax(x + first, count), tensor_scale));
    for (int64_t k = first; k < first + count; ++k) values[k] = nvfp4_value(x[k], scale, tensor_scale);
  }
}

}  // namespace thimble
