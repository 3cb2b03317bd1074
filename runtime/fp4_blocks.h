// fp4_blocks.h: rows of float32 rounded to NVFP4 and back: E2M1 values in blocks of 16 along a row, a UE4M3 scale per
// block, and a float32 scale. One source for the host and for devices; both give the same bits.
//
//   scale = amax / (6 * 448);   s_b = e4m3(amax_b / 6 / scale);   x' = e2m1(x / (s_b * scale)) * (s_b * scale)
//
// amax is the largest |x| of what shares the float32 scale, amax_b that of block b. Roundings are to nearest, ties to
// even. A block whose scale is 0 becomes 0. Elements must be finite.
#pragma once

#include <cmath>
#include <cstdint>

#include "runtime/host_device.h"

namespace thimble {

constexpr int kFp4Block = 16;
constexpr float kLargestE2m1 = 6, kLargestE4m3 = 448;

// x rounded to 0, .5, 1, 1.5, 2, 3, 4 or 6, with its sign; beyond 6 it is 6.
THIMBLE_HOST_DEVICE inline float rounded_to_e2m1(float x) {
  const float a = fabsf(x);
  float r = kLargestE2m1;
  if (a < 2)
    r = rintf(a * 2) * 0.5f;
  else if (a < 4)
    r = rintf(a);
  else if (a <= 5)  // the tie at 5 goes to 4, whose mantissa is even
    r = 4;
  return x < 0 ? -r : r;
}

// x >= 0 rounded to E4M3 without its sign: 3 mantissa bits, the smallest normal number 2^-6, at most 448.
THIMBLE_HOST_DEVICE inline float rounded_to_ue4m3(float x) {
  if (!(x < kLargestE4m3)) return kLargestE4m3;
  int exponent = 0;
  frexpf(x, &exponent);  // x in [2^(exponent - 1), 2^exponent)
  if (exponent < -5) exponent = -5;
  const float step = ldexpf(1.0f, exponent - 4);
  const float rounded = rintf(x / step) * step;
  return rounded < kLargestE4m3 ? rounded : kLargestE4m3;
}

// The float32 scale of elements with this largest magnitude.
THIMBLE_HOST_DEVICE inline float fp4_scale(float largest) { return largest / (kLargestE2m1 * kLargestE4m3); }

// One block of n <= 16 elements; y may be x.
THIMBLE_HOST_DEVICE inline void round_fp4_block(const float* x, int64_t n, float scale, float* y) {
  float largest = 0;
  for (int64_t i = 0; i < n; ++i) largest = fmaxf(largest, fabsf(x[i]));
  const float step = scale > 0 ? rounded_to_ue4m3(largest / kLargestE2m1 / scale) * scale : 0;
  for (int64_t i = 0; i < n; ++i) y[i] = step > 0 ? rounded_to_e2m1(x[i] / step) * step : 0;
}

}  // namespace thimble
