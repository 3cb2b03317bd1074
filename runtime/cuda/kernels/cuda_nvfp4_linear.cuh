// cuda_nvfp4_linear.cuh: a linear layer in NVFP4 on device memory: stages its input and multiplies the codes. The
// product is cuBLASLt's where the device has one, else the dequantizing one. For .cu files only.
#pragma once

#include <map>
#include <memory>
#include <utility>

#include "runtime/cpu/backend.h"
#include "runtime/cuda/kernels/cuda_context.cuh"
#include "runtime/cuda/kernels/cuda_nvfp4_native.cuh"

namespace thimble {

class CudaNvfp4Linear {
 public:
  // Of the device that is current in all calls.
  explicit CudaNvfp4Linear(int ordinal);
  // Bytes that the product of so many rows with `w` will add to what is held here.
  size_t growth(int64_t rows, const Nvfp4Weight& w) const;
  // y (rows, N) = x w^T for w (N, K), as Backend::linear_nvfp4(). `w` is copied to the device once.
  void multiply(const float* x, int64_t rows, const Nvfp4Weight& w, float* y, cudaStream_t stream);

 private:
  std::unique_ptr<NativeNvfp4Product> native_;                             // null: not on this device
  std::map<std::pair<const float*, int64_t>, DeviceNvfp4Matrix> weights_;  // by where the values lie, and rows
  DeviceArray<uint8_t> codes_, scales_;                                    // of the input that was staged last
  DeviceArray<float> row_scales_;                                          // (rows)
};

}  // namespace thimble
