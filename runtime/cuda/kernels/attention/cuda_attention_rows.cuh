// cuda_attention_rows.cuh: how both window attentions end: outputs are divided by the softmax's sums, XSA removes the
// component along the own value, rows are stored over their queries.
#pragma once

#include "runtime/cuda/kernels/attention/cuda_attention.h"
#include "runtime/cuda/kernels/cuda_gemm.cuh"

namespace thimble {

// The rows of one head that a CTA's queries have in memory, from its first query on.
template <typename T>
struct AttentionRows {
  const T* values;  // of the queries' own positions
  int64_t value_stride;
  T* out;
  int64_t out_stride;
  int count;  // rows that exist
  bool exclusive;
};

// Neighbouring elements of a row as they lie in memory.
template <typename T>
struct alignas(2 * sizeof(T)) StoredPair {
  T values[2];
};

// What a lane needs of its two rows' own values, fetched early; zero without XSA. Lane l of a warp holds rows `row` and
// row + 8, columns 8j + 2(l%4) + {0,1}.
template <typename T, int kColumns>
struct OwnValues {
  StoredPair<T> pairs[2][kColumns];

  __device__ OwnValues(const AttentionRows<T>& rows, int row) {
    int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const T* own = rows.values + min(row + 8 * half, rows.count - 1) * rows.value_stride + column;
#pragma unroll
      for (int j = 0; j < kColumns; ++j)
        pairs[half][j] = rows.exclusive ? *reinterpret_cast<const StoredPair<T>*>(own + 8 * j) : StoredPair<T>{};
    }
  }
  __device__ float2 at(int half, int j) const { return load_pair(pairs[half][j].values); }
};

// The weight of 2^exponent of all weights' sum, in Q1.15. log_sum: log2 of the sum.
__device__ inline float rounded_weight(float exponent, float log_sum) {
  return FixedPoint::q115(fminf(exp2_fast(exponent - log_sum), kFixedPointLimit));
}

// out: this warp's fragment of sums over values becomes the outputs; inverse_sums: of the softmax's two rows.
template <typename T, int kColumns>
__device__ void finish_attention(float (&out)[kColumns][4], const float (&inverse_sums)[2],
                                 const OwnValues<T, kColumns>& own) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float inverse = inverse_sums[half], along = 0, squares = 0;
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      float2 v = own.at(half, j);
      out[j][2 * half] *= inverse;
      out[j][2 * half + 1] *= inverse;
      along += out[j][2 * half] * v.x + out[j][2 * half + 1] * v.y;
      squares += v.x * v.x + v.y * v.y;
    }
    float length = fmaxf(sqrtf(sum_over_lanes<4>(squares)), kLeastValueNorm);
    float removed = sum_over_lanes<4>(along) / length / length;
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      float2 v = own.at(half, j);
      out[j][2 * half] -= removed * v.x;
      out[j][2 * half + 1] -= removed * v.y;
    }
  }
}

// Those of the lane's two rows that exist and are to be stored.
template <typename T, int kColumns>
__device__ void store_rows(const float (&out)[kColumns][4], int row, const AttentionRows<T>& rows,
                           const bool (&is_stored)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (row + 8 * half >= rows.count || !is_stored[half]) continue;
    T* to = rows.out + (row + 8 * half) * rows.out_stride + threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < kColumns; ++j) store_pair(to + 8 * j, {out[j][2 * half], out[j][2 * half + 1]});
  }
}

}  // namespace thimble
