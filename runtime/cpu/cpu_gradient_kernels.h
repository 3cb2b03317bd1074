// cpu_gradient_kernels.h: the table of the kernels of losses, of the backward pass, and of products for statistics and
// their factors: what a program that only runs models does without. As cpu_kernels.h.
#pragma once

#include "runtime/cpu/cpu_kernels.h"

namespace thimble {

// Floats of scratch of a tile.
constexpr int64_t attention_gradient_scratch(int64_t rows, int64_t first_position, int64_t head_dim) {
  return 2 * rows * (first_position + rows + head_dim);
}

// A gradient d<x> is of the loss with respect to x.
struct AttentionGradients {
  const float* dy;  // of the tile's outputs
  float* dq;        // of the tile's queries: written
  float *dk, *dv;   // of positions 0..: added to
  int64_t dy_stride, dq_stride, dkv_stride;
};

struct CpuGradientKernels {
  // Products. C (M,N) = A (M,K) B, or C += it; C (M,N) -= A (M,K) B, B (K,N).
  void (*gemm_nn)(ConstMatrixView a, const StoredMatrixView& b, MatrixView c, bool adds);
  void (*gemm_nn_sub_f64)(ConstMatrixViewF64 a, ConstMatrixViewF64 b, MatrixViewF64 c);
  // As CpuKernels' of a factor B^T that lies as b (K,N); and C += A^T B^T with a (K,M).
  void (*pack_transposed)(const StoredMatrixView& b, const PackedBlocks& blocks, int64_t i, int64_t k, float* packed);
  void (*multiply_packed_tn)(ConstMatrixView a, const PackedBlocks& blocks, const float* packed, int64_t first,
                             int64_t last, MatrixView c);

  // The transposes of row operations and attention. dx may be dy; a null gain is 1.
  void (*rms_norm_backward)(const float* x, const float* gain, float factor, float epsilon, const float* dy, float* dx,
                            int64_t n);
  void (*layer_norm_backward)(const float* x, const float* weight, float epsilon, const float* dy, float* dx,
                              int64_t n);
  void (*activation_backward)(Activation activation, const float* x, const float* dy, float* dx, int64_t n);
  void (*attention_backward)(const AttentionTile& tile, const AttentionGradients& gradients);
  void (*log_softmax)(float* x, int64_t n);
  // Logits become their gradient; a cap of 0: none. Returns the negative log-likelihood of `target`.
  float (*nll_backward)(float* logits, int64_t target, float cap, int64_t n);
  // The same of the divergence from `teacher`.
  float (*divergence_backward)(float* logits, const float* teacher, float cap, int64_t n);
};

// As cpu_kernels().
const CpuGradientKernels& cpu_gradient_kernels();

const CpuGradientKernels& cpu_gradient_kernels_portable();
const CpuGradientKernels& cpu_gradient_kernels_avx2();
const CpuGradientKernels& cpu_gradient_kernels_avx512();

}  // namespace thimble
