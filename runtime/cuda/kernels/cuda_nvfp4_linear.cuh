// cuda_nvfp4_linear.cuh: a linear layer in NVFP4 on device memory: stages its input and multiplies the codes. The
// product is cuBLASLt's where the device has one, else the dequantizing one. For .cu files only.
#pragma once

#include <memory>

#include "runtime/cuda/kernels/cuda_context.cuh"
#include "runtime/cuda/kernels/cuda_nvfp4_native.cuh"

namespace thimble {

class CudaNvfp4Linear {
 public:
  // Room for inputs of so many bytes of codes and of block scales (nvfp4_row_bytes(), scale_layout_bytes()) and so many
  // rows. On the current device, which is current in all calls.
  CudaNvfp4Linear(int64_t code_bytes, int64_t scale_bytes, int64_t rows);
  // y (rows, N) = x w^T less the tensor scale of each row of x, which row_scales() holds afterwards: x (rows, K), rows
  // `stride` apart, is staged (nvfp4.h) with a tensor scale per row; w (N, K) has the scale `weight_scale`.
  void multiply(const float* x, int64_t stride, int64_t rows, int64_t columns, const DeviceNvfp4& w, int64_t width,
                float weight_scale, float* y, cudaStream_t stream);
  const float* row_scales() const { return row_scales_.data(); }

 private:
  std::unique_ptr<NativeNvfp4Product> native_;  // null: not on this device
  DeviceArray<uint8_t> codes_, scales_;         // of the input that was staged last
  DeviceArray<float> row_scales_;
};

}  // namespace thimble
