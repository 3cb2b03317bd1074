// cpu_gradient_kernels.h: the table of kernels of the backward pass, compiled once per instruction set
// (cpu_gradient_kernels.cpp). Internal to runtime/. Every kernel runs on the calling thread.
// Axis letters as in backend.h. A gradient d<x> is of the loss with respect to x.
#pragma once

#include <cstdint>

#include "runtime/ops/activation.h"
#include "runtime/tensor/matrix.h"

namespace thimble {

// The backward pass of an AttentionTile (cpu_kernels.h): `rows` consecutive queries of a window, the first at
// `first_position`. All pointers are to the head's first column.
struct AttentionGradientTile {
  const float *q, *k, *v;  // queries of the tile; keys and values of positions 0..
  const float* dy;         // of the tile's outputs
  float* dq;               // of the tile's queries: written
  float *dk, *dv;          // of positions 0..: added to
  int64_t q_stride, k_stride, v_stride, dy_stride, dq_stride, dkv_stride;  // the last of dk and dv
  int64_t rows, first_position, head_dim;
  float scale;
  bool exclusive;
  float* scratch;  // attention_gradient_scratch() floats
};

constexpr int64_t attention_gradient_scratch(int64_t rows, int64_t first_position, int64_t head_dim) {
  return 2 * rows * (first_position + rows) + 2 * rows * head_dim;
}

// n is a row's width.
struct CpuGradientKernels {
  // Products. C (M,N) = A (M,K) B with B (K,N); the same added to C.
  void (*gemm_nn)(ConstMatrixView a, ConstMatrixView b, MatrixView c);
  void (*gemm_nn_add)(ConstMatrixView a, ConstMatrixView b, MatrixView c);

  // Row operations: the transposes of those of network.h.
  void (*scale)(const float* x, const float* scale, float* y, int64_t n);  // y may be x
  // dx may be dy; a null gain is 1.
  void (*rms_norm_backward)(const float* x, const float* gain, float factor, float epsilon, const float* dy, float* dx,
                            int64_t n);
  void (*layer_norm_backward)(const float* x, const float* weight, float epsilon, const float* dy, float* dx,
                              int64_t n);
  void (*activation_backward)(Activation activation, const float* x, const float* dy, float* dx, int64_t n);
  void (*rotate_back)(float* dy, const float* cosine, const float* sine, int64_t half);
  // Returns the negative log-likelihood of `target`.
  float (*nll_backward)(float* logits, int64_t target, float cap, int64_t n);
  // Returns the divergence from `teacher`.
  float (*divergence_backward)(float* logits, const float* teacher, float cap, int64_t n);
  void (*attention_backward)(const AttentionGradientTile& tile);
};

// The table for cpu_instruction_set().
const CpuGradientKernels& cpu_gradient_kernels();

// One per compiled instruction set; declared for all, defined for those that the build has.
const CpuGradientKernels& cpu_gradient_kernels_portable();
const CpuGradientKernels& cpu_gradient_kernels_avx2();
const CpuGradientKernels& cpu_gradient_kernels_avx512();

}  // namespace thimble
