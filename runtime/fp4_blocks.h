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

#include "runtime/nvfp4.h"

namespace thimble {

// The float32 scale of elements with this largest magnitude.
THIMBLE_HOST_DEVICE inline float fp4_scale(float largest) { return largest / (kE2m1Max * kUe4m3Max); }

// One block of n <= 16 elements; y may be x.
THIMBLE_HOST_DEVICE inline void round_fp4_block(const float* x, int64_t n, float scale, float* y) {
  float largest = 0;
  for (int64_t i = 0; i < n; ++i) largest = fmaxf(largest, fabsf(x[i]));
  const float step = scale > 0 ? float_from_ue4m3(ue4m3_from_float(largest / kE2m1Max / scale)) * scale : 0;
  for (int64_t i = 0; i < n; ++i) y[i] = step > 0 ? float_from_e2m1(e2m1_from_float(x[i] / step)) * step : 0;
}

}  // namespace thimble
