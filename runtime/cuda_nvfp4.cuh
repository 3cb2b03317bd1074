// cuda_nvfp4.cuh: the product with NVFP4 weights on device memory. For .cu files only.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace thimble {

// Nvfp4Codes in device memory, (R, K).
struct DeviceNvfp4 {
  const uint8_t* codes;         // (R, ceil(K / 2))
  const uint8_t* block_scales;  // (R, ceil(K / 16))
};

// C (M, N) = alpha * A (M, K) B^T, row-major. `alpha` holds the tensor scales of B and, if it has one, of A.
void multiply_nvfp4(const __nv_bfloat16* a, const DeviceNvfp4& b, float* c, int64_t m, int64_t n, int64_t k,
                    float alpha, cudaStream_t stream);
void multiply_nvfp4(const DeviceNvfp4& a, const DeviceNvfp4& b, float* c, int64_t m, int64_t n, int64_t k, float alpha,
                    cudaStream_t stream);

}  // namespace thimble
