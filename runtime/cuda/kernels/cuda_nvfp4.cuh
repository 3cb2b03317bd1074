// cuda_nvfp4.cuh: NVFP4 operands in device memory, and the product that unpacks them. For .cu files only.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "runtime/codes/nvfp4_matrix.h"
#include "runtime/cuda/kernels/cuda_context.cuh"

namespace thimble {

// Nvfp4Codes in device memory, (R, K), less the tensor scale.
struct DeviceNvfp4 {
  const uint8_t* codes;   // (R, ceil(K / 2))
  const uint8_t* scales;  // of blocks, in the layout of nvfp4_scale_layout.h
};

// An owner of one.
class DeviceNvfp4Matrix {
 public:
  // Rows [first_row, first_row + rows) of `coded`.
  DeviceNvfp4Matrix(const Nvfp4Codes& coded, int64_t first_row, int64_t rows, int64_t columns);
  DeviceNvfp4 view() const { return {codes_.data(), scales_.data()}; }

 private:
  DeviceArray<uint8_t> codes_, scales_;
};

// C (M, N) = alpha * A (M, K) B^T, row-major; sums in float32 on tensor cores. `alpha` holds the tensor scales of B
// and, if it has one, of A.
void multiply_nvfp4(const __nv_bfloat16* a, const DeviceNvfp4& b, float* c, int64_t m, int64_t n, int64_t k,
                    float alpha, cudaStream_t stream);
void multiply_nvfp4(const DeviceNvfp4& a, const DeviceNvfp4& b, float* c, int64_t m, int64_t n, int64_t k, float alpha,
                    cudaStream_t stream);

}  // namespace thimble
