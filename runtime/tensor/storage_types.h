// storage_types.h: the types that low-precision operators read and write, and the one that each computes in: float32,
// always. One source for the host and for devices (CUDA, HIP). Every conversion rounds to nearest, ties to even, and
// keeps subnormals, infinities and NaN.
#pragma once

#include <cstdint>
#include <type_traits>

#include "runtime/tensor/dtype.h"
#include "runtime/tensor/host_device.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace thimble {

struct Fp16 {  // IEEE binary16
  uint16_t bits;
};
struct Bf16 {  // bfloat16
  uint16_t bits;
};

// Storage <-> compute type. Of integer codes, which are read only and which float32 holds exactly:
template <typename Code>
struct StorageTraits {
  static_assert(std::is_integral_v<Code> && sizeof(Code) <= 2);
  THIMBLE_HOST_DEVICE static float load(Code code) { return static_cast<float>(code); }
};

template <>
struct StorageTraits<float> {
  THIMBLE_HOST_DEVICE static float load(float value) { return value; }
  THIMBLE_HOST_DEVICE static float store(float value) { return value; }
};

template <>
struct StorageTraits<Fp16> {
  THIMBLE_HOST_DEVICE static float load(Fp16 value) {
#if defined(__CUDA_ARCH__)
    return __half2float(__ushort_as_half(value.bits));
#elif defined(__HIP_DEVICE_COMPILE__)
    return static_cast<float>(__builtin_bit_cast(_Float16, value.bits));
#else
    return float_from_fp16(value.bits);
#endif
  }
  THIMBLE_HOST_DEVICE static Fp16 store(float value) {
#if defined(__CUDA_ARCH__)
    return {__half_as_ushort(__float2half_rn(value))};
#elif defined(__HIP_DEVICE_COMPILE__)
    return {__builtin_bit_cast(uint16_t, static_cast<_Float16>(value))};
#else
    return {fp16_from_float(value)};
#endif
  }
};

template <>
struct StorageTraits<Bf16> {
  THIMBLE_HOST_DEVICE static float load(Bf16 value) {
#if defined(__CUDA_ARCH__)
    return __uint_as_float(static_cast<uint32_t>(value.bits) << 16);
#elif defined(__HIP_DEVICE_COMPILE__)
    return __builtin_bit_cast(float, static_cast<uint32_t>(value.bits) << 16);
#else
    return float_from_bf16(value.bits);
#endif
  }
  THIMBLE_HOST_DEVICE static Bf16 store(float value) {
#if defined(__CUDA_ARCH__)
    return {__bfloat16_as_ushort(__float2bfloat16_rn(value))};
#elif defined(__HIP_DEVICE_COMPILE__)
    auto bits = __builtin_bit_cast(uint32_t, value);  // as bf16_from_float() does
    if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
    return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
#else
    return {bf16_from_float(value)};
#endif
  }
};

}  // namespace thimble
