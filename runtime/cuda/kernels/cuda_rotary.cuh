// cuda_rotary.cuh: tables of rotary angles (Su et al., arXiv 2104.09864) as kernels read them: cosine and sine of each
// position's pairs, (T, rotary_stride(half)). Pairs beyond `half`, up to the next four, are (1, 0) and rotate nothing,
// so that four pairs are always read together.
#pragma once

#include "runtime/tensor/host_device.h"

namespace thimble {

constexpr int kRotaryQuad = 4;
THIMBLE_HOST_DEVICE constexpr int rotary_stride(int half) { return static_cast<int>(round_up(half, kRotaryQuad)); }

// Of a head whose pairs lie apart, (k, half + k): the column that c rotates with.
__device__ inline int rotation_partner(int c, int half) { return c < half ? c + half : c - half; }

// Of neighbouring pairs, the first an even one.
__device__ inline void load_two_angles(const float2* at, float2& first, float2& second) {
  const float4 two = *reinterpret_cast<const float4*>(at);
  first = {two.x, two.y};
  second = {two.z, two.w};
}
// v: four neighbouring pairs.
__device__ inline void rotate(float (&v)[8], const float2 (&angles)[kRotaryQuad]) {
#pragma unroll
  for (int i = 0; i < kRotaryQuad; ++i) {
    float2 pair = {v[2 * i], v[2 * i + 1]};
    v[2 * i] = pair.x * angles[i].x + pair.y * angles[i].y;
    v[2 * i + 1] = pair.y * angles[i].x - pair.x * angles[i].y;
  }
}

}  // namespace thimble
