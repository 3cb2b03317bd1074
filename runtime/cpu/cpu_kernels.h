// cpu_kernels.h: the table of kernels that are compiled once per instruction set (cpu_kernels.cpp).
// Internal to runtime/. Every kernel runs on the calling thread; parallel loops are the callers' business.
#pragma once

#include <cstdint>

#include "runtime/tensor/matrix.h"

namespace thimble {

struct Rounding;  // rounding.h

// Rounds n elements in place. A function of the callers': these kernels must define nothing that others could link.
struct RowRounding {
  const Rounding* rounding = nullptr;  // null: exact
  void (*apply)(const Rounding& rounding, float* x, int64_t n) = nullptr;
};

// One tile of causal attention for one head: `rows` consecutive queries of one sequence, the first at `first_position`.
// All pointers are to the head's first column.
struct AttentionTile {
  const float* q;
  const float* k;  // keys of positions 0.., of the tile's sequence and head
  const float* v;
  float* y;
  int64_t q_stride, k_stride, v_stride, y_stride;
  int64_t rows, first_position, head_dim;
  float scale;  // of q k^T
  bool exclusive;
  float* scores;  // scratch, rows * (first_position + rows)
  RowRounding score_rounding, weight_rounding;
};

// n is a row's width. Rows of one call never overlap unless a comment says that output may be input.
struct CpuKernels {
  const char* name;

  // Products. C (M,N) = A (M,K) B^T with B (N,K); C (M,N) += A^T B with A (T,M), B (T,N); C (M,N) -= A (M,K) B, B
  // (K,N).
  void (*gemm_nt)(ConstMatrixView a, ConstMatrixView b, MatrixView c);
  void (*gemm_tn_add)(ConstMatrixView a, ConstMatrixView b, MatrixView c);
  void (*gemm_nn_sub_f64)(ConstMatrixViewF64 a, ConstMatrixViewF64 b, MatrixViewF64 c);

  // Row operations, as network.h names and defines them.
  void (*add_scaled)(const float* a, float scale, float* x, int64_t n);
  // y may be x; a null gain is 1.
  void (*rms_norm)(const float* x, const float* gain, float factor, float epsilon, float* y, int64_t n);
  void (*smear)(const float* x, const float* before, const float* gate, float* out, int64_t n);
  void (*add_skip)(const float* skip, const float* weight, const float* gate, float* x, int64_t n);  // gate may be null
  void (*mix)(const float* x, const float* a, const float* first, const float* second, float* y, int64_t n);
  void (*multiply)(const float* a, float* x, int64_t n);  // x *= a
  // The first 2*half dimensions of one head.
  void (*rotate)(float* x, const float* cosine, const float* sine, int64_t half);
  void (*add)(const float* a, const float* scale, float* x, int64_t n);
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float epsilon, float* y,
                     int64_t n);  // y may be x
  void (*leaky_relu_squared)(float* z, int64_t n);
  void (*gelu)(float* z, int64_t n);
  void (*silu)(float* z, int64_t n);
  void (*softcap)(float cap, float* x, int64_t n);
  void (*log_softmax)(float* x, int64_t n);
  void (*attention)(const AttentionTile& tile);
};

// The best table for this machine (see cpu_instruction_set()).
const CpuKernels& cpu_kernels();

// One per compiled instruction set; declared for all, defined for those that the build has.
const CpuKernels& cpu_kernels_portable();
const CpuKernels& cpu_kernels_avx2();
const CpuKernels& cpu_kernels_avx512();

}  // namespace thimble
