// host_device.h: functions that both the host's compiler and the device's (CUDA or HIP) translate.
#pragma once

#include <cstdint>

#if defined(__CUDACC__) || defined(__HIPCC__)
#define THIMBLE_HOST_DEVICE __host__ __device__
#else
#define THIMBLE_HOST_DEVICE
#endif

// Defined while the device's half of a source is translated.
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
#define THIMBLE_DEVICE_CODE
#endif

namespace thimble {

THIMBLE_HOST_DEVICE constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
THIMBLE_HOST_DEVICE constexpr int divide_up(int64_t value, int64_t divisor) {
  return static_cast<int>((value + divisor - 1) / divisor);
}

}  // namespace thimble
