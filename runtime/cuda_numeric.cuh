// cuda_numeric.cuh: storage types of the CUDA kernels (float, __nv_bfloat16) and their conversions; all arithmetic is
// float32. Small helpers of warps.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace thimble {

// Two neighbouring elements of a row; the address must be a multiple of their size.
__device__ inline float2 load_pair(const float* at) { return *reinterpret_cast<const float2*>(at); }
__device__ inline float2 load_pair(const __nv_bfloat16* at) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(at));
}
// Stores the pair rounded to nearest even, and returns what was stored.
__device__ inline float2 store_pair(float* at, float2 value) {
  *reinterpret_cast<float2*>(at) = value;
  return value;
}
__device__ inline float2 store_pair(__nv_bfloat16* at, float2 value) {
  __nv_bfloat162 rounded = __float22bfloat162_rn(value);
  *reinterpret_cast<__nv_bfloat162*>(at) = rounded;
  return __bfloat1622float2(rounded);
}

template <typename T>
__device__ T from_float(float value) {
  if constexpr (sizeof(T) == 4)
    return value;
  else
    return __float2bfloat16_rn(value);
}
__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

// Sum and maximum over `kLanes` neighbouring lanes (a power of two); every lane gets them. A fixed tree: the same bits
// every time.
template <int kLanes>
__device__ float sum_over_lanes(float value) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(~0u, value, distance);
  return value;
}
template <int kLanes>
__device__ float max_over_lanes(float value) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2)
    value = fmaxf(value, __shfl_xor_sync(~0u, value, distance));
  return value;
}

__host__ __device__ constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
__host__ __device__ constexpr int divide_up(int64_t value, int64_t divisor) {
  return static_cast<int>((value + divisor - 1) / divisor);
}

constexpr float kNormEpsilon = 1.1920929e-7f;  // of rms(), as Backend defines it

}  // namespace thimble
