// cpu_kernels.h: the table of kernels, of both passes, that are compiled once per instruction set (cpu_kernels.cpp).
// Internal to runtime/. Every kernel runs on the calling thread; parallel loops are the callers' business.
#pragma once

#include <cstdint>

#include "runtime/ops/activation.h"
#include "runtime/ops/attention_window.h"
#include "runtime/tensor/matrix.h"
#include "runtime/tensor/stored_matrix.h"

namespace thimble {

struct Rounding;  // rounding.h

// Rounds n elements in place. A function of the callers': these kernels must define nothing that others could link.
struct RowRounding {
  const Rounding* rounding = nullptr;  // null: exact
  void (*apply)(const Rounding& rounding, float* x, int64_t n) = nullptr;
};

// One tile of causal attention for one head: `rows` consecutive queries of one sequence, the first at `first_position`.
// All pointers, here and in the calls with a tile, are to the head's first column.
struct AttentionTile {
  const float *q, *k, *v;  // queries of the tile; keys and values of positions 0.., of its sequence and head
  int64_t q_stride, k_stride, v_stride;
  int64_t rows, first_position, head_dim;
  int64_t window;  // attention_window.h
  float scale;     // of q k^T
  bool exclusive;
  float* scratch;  // rows * (first_position + rows) floats; attention_gradient_scratch() for the backward pass
};

constexpr int64_t attention_gradient_scratch(int64_t rows, int64_t first_position, int64_t head_dim) {
  return 2 * rows * (first_position + rows + head_dim);
}

struct AttentionRoundings {
  RowRounding scores, weights;
};

// A gradient d<x> is of the loss with respect to x.
struct AttentionGradients {
  const float* dy;  // of the tile's outputs
  float* dq;        // of the tile's queries: written
  float *dk, *dv;   // of positions 0..: added to
  int64_t dy_stride, dq_stride, dkv_stride;
};

// n is a row's width. Rows of one call never overlap unless a comment says that output may be input.
struct CpuKernels {
  const char* name;

  // Products. C (M,N) = A (M,K) B^T with B (N,K); C (M,N) = A (M,K) B, or C += it; C (M,N) += A^T B with A (T,M), B
  // (T,N); C (M,N) -= A (M,K) B, B (K,N).
  void (*gemm_nt)(ConstMatrixView a, const StoredMatrixView& b, MatrixView c);
  void (*gemm_nn)(ConstMatrixView a, const StoredMatrixView& b, MatrixView c, bool adds);
  void (*gemm_tn_add)(ConstMatrixView a, ConstMatrixView b, MatrixView c);
  void (*gemm_nn_sub_f64)(ConstMatrixViewF64 a, ConstMatrixViewF64 b, MatrixViewF64 c);

  // Row operations, as network.h names and defines them.
  void (*add_scaled)(const float* a, float scale, float* x, int64_t n);
  void (*add)(const float* a, const float* scale, float* x, int64_t n);
  // y may be x; a null gain is 1.
  void (*rms_norm)(const float* x, const float* gain, float factor, float epsilon, float* y, int64_t n);
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float epsilon, float* y,
                     int64_t n);  // y may be x
  void (*smear)(const float* x, const float* before, const float* gate, float* out, int64_t n);
  void (*gated_skip)(const float* skip, const float* weight, const float* gate, float* x, int64_t n);
  void (*mix)(const float* x, const float* a, const float* first, const float* second, float* y, int64_t n);
  void (*multiply)(const float* x, const float* a, float* y, int64_t n);  // y = x * a; y may be x
  // The first 2*half dimensions of one head, by the angles times `turn`: 1, or -1 for the transpose.
  void (*rotate)(float* x, const float* cosine, const float* sine, int64_t half, float turn);
  void (*activate)(Activation activation, float* z, int64_t n);
  void (*softcap)(float cap, float* x, int64_t n);
  void (*log_softmax)(float* x, int64_t n);
  void (*attention)(const AttentionTile& tile, float* y, int64_t y_stride, const AttentionRoundings& roundings);

  // Their transposes. dx may be dy; a null gain is 1.
  void (*rms_norm_backward)(const float* x, const float* gain, float factor, float epsilon, const float* dy, float* dx,
                            int64_t n);
  void (*layer_norm_backward)(const float* x, const float* weight, float epsilon, const float* dy, float* dx,
                              int64_t n);
  void (*activation_backward)(Activation activation, const float* x, const float* dy, float* dx, int64_t n);
  void (*attention_backward)(const AttentionTile& tile, const AttentionGradients& gradients);
  // Logits become their gradient; a cap of 0: none. Returns the negative log-likelihood of `target`.
  float (*nll_backward)(float* logits, int64_t target, float cap, int64_t n);
  // The same of the divergence from `teacher`.
  float (*divergence_backward)(float* logits, const float* teacher, float cap, int64_t n);
};

// The best table for this machine (see cpu_instruction_set()).
const CpuKernels& cpu_kernels();

// One per compiled instruction set; declared for all, defined for those that the build has.
const CpuKernels& cpu_kernels_portable();
const CpuKernels& cpu_kernels_avx2();
const CpuKernels& cpu_kernels_avx512();

}  // namespace thimble
