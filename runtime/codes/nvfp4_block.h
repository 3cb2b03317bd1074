// nvfp4_block.h: staging: how float32 elements become NVFP4. One source for the host and for devices; both give the
// same bits.
//
//   tensor scale = amax / (6 * 448);   s_b = ue4m3(amax_b / 6 / tensor scale);   code = e2m1(x / (s_b * tensor scale))
//
// amax is the largest |x| of what shares the tensor scale, amax_b that of block b. A block whose scale is 0 becomes 0.
// NaN and infinities make the tensor scale or the scale of their block NaN, and so every product with them.
#pragma once

#include <cmath>
#include <cstdint>

#include "runtime/codes/nvfp4.h"

namespace thimble {

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

}  // namespace thimble
