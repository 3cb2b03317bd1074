// cuda_nvfp4_native.cuh: cuBLASLt's block-scaled product on device memory. For .cu files only.
#pragma once

#include <memory>

#include "runtime/cuda/kernels/cuda_nvfp4.cuh"

namespace thimble {

constexpr int64_t kNativeNvfp4Columns = 32;  // cuBLASLt wants leading dimensions in units of 16 bytes

// On the current device, where why_not_native_nvfp4() has nothing to say.
class NativeNvfp4Product {
 public:
  NativeNvfp4Product();
  ~NativeNvfp4Product();
  // C (M, N) = alpha * A (M, K) B^T, row-major, sums in float32. False, with nothing done, where cuBLASLt has no such
  // product: K is not a multiple of kNativeNvfp4Columns, or no algorithm takes the shapes.
  bool multiply(const DeviceNvfp4& a, const DeviceNvfp4& b, float* c, int64_t m, int64_t n, int64_t k, float alpha,
                cudaStream_t stream);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace thimble
