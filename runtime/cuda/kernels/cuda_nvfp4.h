// cuda_nvfp4.h: matrix products with NVFP4 operands on CUDA devices. Builds without CUDA have these functions too; they
// throw DeviceError. M, N = rows of the operands, K = columns of both
#pragma once

#include <string>

#include "runtime/codes/nvfp4_matrix.h"

namespace thimble {

// C (M, N) = A (M, K) B^T with B (N, K), float32. Both operands are unpacked to bf16, which holds element times block
// scale exactly; tensor cores multiply them exactly and add in float32. Any device of compute capability 8.0 and more.
Matrix multiply_nvfp4_on_cuda(int ordinal, const Nvfp4Codes& a, int64_t m, const Nvfp4Codes& b, int64_t n, int64_t k);

// The same with A in bf16, row-major.
Matrix multiply_bf16_nvfp4_on_cuda(int ordinal, std::span<const uint16_t> a, int64_t m, const Nvfp4Codes& b, int64_t n,
                                   int64_t k);

// The same as the first by cuBLASLt's block-scaled product, which never unpacks. It needs compute capability 10.0 or
// more, libcublasLt of CUDA 12.8 or newer where the dynamic linker finds it, and K a multiple of 32.
Matrix multiply_nvfp4_natively(int ordinal, const Nvfp4Codes& a, int64_t m, const Nvfp4Codes& b, int64_t n, int64_t k);

// Why the native product cannot be used on this device; empty when it can.
std::string why_not_native_nvfp4(int ordinal);

}  // namespace thimble
