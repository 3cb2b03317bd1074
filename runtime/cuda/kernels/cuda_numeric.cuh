// cuda_numeric.cuh: storage types of the CUDA kernels (float, __nv_bfloat16, __half) and their conversions; all
// arithmetic is float32. Small helpers of warps.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "runtime/tensor/rounding.h"

namespace thimble {

// Two neighbouring elements of a row; the address must be a multiple of their size.
__device__ inline float2 load_pair(const float* at) { return *reinterpret_cast<const float2*>(at); }
__device__ inline float2 load_pair(const __nv_bfloat16* at) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(at));
}
__device__ inline float2 load_pair(const __half* at) { return __half22float2(*reinterpret_cast<const __half2*>(at)); }
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
__device__ inline float2 store_pair(__half* at, float2 value) {
  __half2 rounded = __float22half2_rn(value);
  *reinterpret_cast<__half2*>(at) = rounded;
  return __half22float2(rounded);
}

// Eight neighbouring elements as they lie in memory; the address must be a multiple of 16 bytes.
template <typename T>
struct Stored8;

template <>
struct Stored8<float> {
  float4 low, high;

  __device__ static Stored8 load(const float* at) {
    return {reinterpret_cast<const float4*>(at)[0], reinterpret_cast<const float4*>(at)[1]};
  }
  __device__ void store(float* at) const {
    reinterpret_cast<float4*>(at)[0] = low;
    reinterpret_cast<float4*>(at)[1] = high;
  }
  __device__ static Stored8 rounded(const float (&v)[8]) {
    return {{v[0], v[1], v[2], v[3]}, {v[4], v[5], v[6], v[7]}};
  }
  __device__ void unpack(float (&v)[8]) const {
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
    v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
  }
};

template <>
struct Stored8<__nv_bfloat16> {
  uint4 raw;

  __device__ static Stored8 load(const __nv_bfloat16* at) { return {*reinterpret_cast<const uint4*>(at)}; }
  __device__ void store(__nv_bfloat16* at) const { *reinterpret_cast<uint4*>(at) = raw; }
  __device__ static Stored8 rounded(const float (&v)[8]) {
    Stored8 out;
    auto* pairs = reinterpret_cast<__nv_bfloat162*>(&out.raw);
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
    return out;
  }
  __device__ void unpack(float (&v)[8]) const {
    const auto* pairs = reinterpret_cast<const __nv_bfloat162*>(&raw);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float2 pair = __bfloat1622float2(pairs[i]);
      v[2 * i] = pair.x;
      v[2 * i + 1] = pair.y;
    }
  }
};

template <>
struct Stored8<__half> {
  uint4 raw;

  __device__ static Stored8 load(const __half* at) { return {*reinterpret_cast<const uint4*>(at)}; }
  __device__ void store(__half* at) const { *reinterpret_cast<uint4*>(at) = raw; }
  __device__ static Stored8 rounded(const float (&v)[8]) {
    Stored8 out;
    auto* pairs = reinterpret_cast<__half2*>(&out.raw);
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = __floats2half2_rn(v[2 * i], v[2 * i + 1]);
    return out;
  }
  __device__ void unpack(float (&v)[8]) const {
    const auto* pairs = reinterpret_cast<const __half2*>(&raw);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float2 pair = __half22float2(pairs[i]);
      v[2 * i] = pair.x;
      v[2 * i + 1] = pair.y;
    }
  }
};

// What PTX calls a type of 16 bits.
template <typename T>
struct PtxType {
  static constexpr char kName[] = "bf16";
};
template <>
struct PtxType<__half> {
  static constexpr char kName[] = "f16";
};

// Two values rounded to T, the first in the lower half.
template <typename T>
__device__ uint32_t packed(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.%3x2.f32 %0, %2, %1;\n" : "=r"(pair) : "f"(low), "f"(high), "C"(PtxType<T>::kName));
  return pair;
}

// Four neighbouring elements, rounded; the address must be a multiple of their size.
template <typename T>
__device__ void store_four(T* at, const float (&v)[4]) {
  if constexpr (sizeof(T) == sizeof(float))
    *reinterpret_cast<float4*>(at) = {v[0], v[1], v[2], v[3]};
  else
    *reinterpret_cast<uint2*>(at) = {packed<T>(v[0], v[1]), packed<T>(v[2], v[3])};
}

template <typename T>
__device__ float2 unpacked(uint32_t pair) {
  return load_pair(reinterpret_cast<const T*>(&pair));
}

// Both as they are once stored.
template <typename T>
__device__ float2 stored_pair(float low, float high) {
  return unpacked<T>(packed<T>(low, high));
}

template <typename T>
__device__ T from_float(float value) {
  if constexpr (std::is_same_v<T, float>)
    return value;
  else if constexpr (std::is_same_v<T, __half>)
    return __float2half_rn(value);
  else
    return __float2bfloat16_rn(value);
}
__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ inline float to_float(__half value) { return __half2float(value); }

// 2^x; results below the smallest normal number become 0.
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}
// 1 / x to a unit in the last place; 0 where that is below the smallest normal number.
__device__ inline float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

// The fixed point of rounding.h in float32 arithmetic alone, bit for bit for all numbers but NaN. Whoever adds 2^k to a
// smaller number and takes it away again has rounded it to multiples of 2^(k-23), ties to even. Numbers of 2^-8 and
// more are multiples of 2^-31 as they are.
struct FixedPoint {
  float q131_below;  // 2^-8, or 0: no Q1.31 before Q1.15

  THIMBLE_HOST_DEVICE explicit FixedPoint(const Rounding& rounding)
      : q131_below(rounding.value == Format::kQ131Q115 ? 0x1p-8f : 0) {}
  __device__ float operator()(float x) const {
    x = fminf(fmaxf(x, -kFixedPointLimit), kFixedPointLimit);
    const float least = copysignf(0x1p-8f, x), q131 = __fadd_rn(__fadd_rn(x, least), -least);
    return q115(fabsf(x) < q131_below ? q131 : x);
  }
  // Within the limits.
  __device__ static float q115(float x) { return __fadd_rn(__fadd_rn(x, 384.0f), -384.0f); }
};

// What is left for arithmetic to do of a rounding to T: fixed point. The store as T does the rest.
class ValueRounding {
 public:
  explicit ValueRounding(const Rounding& rounding)
      : is_fixed_(rounding.value != Format::kFp32), fixed_point_(rounding) {}
  __device__ float operator()(float x) const { return is_fixed_ ? fixed_point_(x) : x; }

 private:
  bool is_fixed_;
  FixedPoint fixed_point_;
};

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

}  // namespace thimble
