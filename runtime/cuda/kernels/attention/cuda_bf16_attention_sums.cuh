// cuda_bf16_attention_sums.cuh: what both kinds of kernels of cuda_bf16_attention.cuh do with a warp's fragments of 16
// rows, laid out as in cuda_gemm.cuh.
#pragma once

#include "runtime/cuda/kernels/attention/cuda_attention.h"
#include "runtime/cuda/kernels/attention/cuda_attention_tiles.cuh"
#include "runtime/cuda/kernels/attention/cuda_bf16_attention.cuh"

namespace thimble {

__device__ inline int heads_per_group(const Bf16AttentionOperands& in) { return in.heads / in.kv_heads; }
// Where a head's values of queries begin.
__device__ inline int64_t first_of(const Bf16AttentionOperands& in, int64_t sequence, int head) {
  return (sequence * in.heads + head) * int64_t{in.positions};
}

// Hands a fragment's sums to store(position, column, left, right), two neighbouring ones at a time, of which the left
// one exists. `first`: its first row.
template <int kHead, typename Store>
__device__ void for_pairs(const FragmentValues<kHead>& sums, int first, const Bf16AttentionOperands& in,
                          const Store& store) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int position = first + lane / 4 + half * 8;
    if (position >= in.positions) continue;
#pragma unroll
    for (int j = 0; j < kHead / 8; ++j) {
      const int column = 8 * j + lane % 4 * 2;
      if (column < in.head_dim) store(position, column, sums[j][2 * half], sums[j][2 * half + 1]);
    }
  }
}

// Two neighbouring elements, or where a row ends or no pairs lie one after the other one at a time.
struct PairStore {
  bool has_pairs;
  int head_dim;

  __device__ PairStore(const Bf16AttentionOperands& in, const __nv_bfloat16* data, int64_t stride)
      : has_pairs(in.head_dim % 2 == 0 && stride % 2 == 0 && reinterpret_cast<uintptr_t>(data) % 4 == 0),
        head_dim(in.head_dim) {}
  // Returns what was stored.
  __device__ float2 operator()(__nv_bfloat16* at, int column, float left, float right) const {
    if (has_pairs) return store_pair(at, {left, right});
    at[0] = __float2bfloat16_rn(left);
    if (column + 1 < head_dim) at[1] = __float2bfloat16_rn(right);
    return {to_float(__float2bfloat16_rn(left)), to_float(__float2bfloat16_rn(right))};
  }
};

// Writes or adds factor * sums of a fragment, whose first row is `first` of the window, to a head's columns.
template <int kHead>
__device__ void store_sums(const FragmentValues<kHead>& sums, float factor, bool adds, const Bf16AttentionOperands& in,
                           int64_t sequence, int first, int head, const Bf16View& to) {
  const PairStore store(in, to.data, to.stride);
  for_pairs<kHead>(sums, first, in, [&](int position, int column, float left, float right) {
    __nv_bfloat16* at = to.data + (sequence * in.positions + position) * to.stride + head * in.head_dim + column;
    left *= factor, right *= factor;
    if (adds) {
      left += to_float(at[0]);
      if (column + 1 < in.head_dim) right += to_float(at[1]);
    }
    store(at, column, left, right);
  });
}

// Outputs, and what rounding left of them.
template <int kHead>
__device__ void store_outputs(const FragmentValues<kHead>& out, const Bf16AttentionOperands& in, int64_t sequence,
                              int first, int head, const Bf16View& to) {
  const int64_t width = int64_t{in.heads} * in.head_dim;
  const PairStore store(in, to.data, to.stride), store_remainder(in, in.remainders, width);
  for_pairs<kHead>(out, first, in, [&](int position, int column, float left, float right) {
    const int64_t row = sequence * in.positions + position;
    const int at = head * in.head_dim + column;
    const float2 stored = store(to.data + row * to.stride + at, column, left, right);
    store_remainder(in.remainders + row * width + at, column, left - stored.x, right - stored.y);
  });
}

// XSA of a fragment's outputs: removes their component along the own value, and keeps it. `first`: its first query.
template <int kHead>
__device__ void remove_own_value(FragmentValues<kHead>& out, const Bf16AttentionOperands& in, int64_t sequence,
                                 int first, int head) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int position = first + lane / 4 + half * 8, read = min(position, in.positions - 1);
    const __nv_bfloat16* own =
        in.v.data + (sequence * in.positions + read) * in.v.stride + head / heads_per_group(in) * kHead;
    float values[kHead / 8][2], squares = 0, dot = 0;
#pragma unroll
    for (int j = 0; j < kHead / 8; ++j) {
      const float2 pair = load_pair(own + 8 * j + lane % 4 * 2);
      values[j][0] = pair.x, values[j][1] = pair.y;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        squares += values[j][i] * values[j][i];
        dot += values[j][i] * out[j][2 * half + i];
      }
    }
    const float inverse = 1 / fmaxf(sqrtf(sum_over_lanes<4>(squares)), kLeastValueNorm);
    const float along = sum_over_lanes<4>(dot) * inverse;
#pragma unroll
    for (int j = 0; j < kHead / 8; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) out[j][2 * half + i] -= along * inverse * values[j][i];
    if (lane % 4 == 0 && position < in.positions) in.along_own[first_of(in, sequence, head) + position] = along;
  }
}

// Scores of keys (rows of the fragment) and queries: as mask_scores().
template <int kQueries>
__device__ void mask_transposed(int first_key, int first_query, int window, FragmentValues<kQueries>& scores) {
  const int lane = threadIdx.x % 32;
  const bool has_diagonal = first_query < first_key + 15;
  const bool has_window = first_seen(first_query + kQueries - 1, window) > first_key;
  if (!has_diagonal && !has_window) return;
#pragma unroll
  for (int j = 0; j < kQueries / 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int query = first_query + 8 * j + lane % 4 * 2 + i % 2, key = first_key + lane / 4 + i / 2 * 8;
      if (key > query || key < first_seen(query, window)) scores[j][i] = -INFINITY;
    }
}

}  // namespace thimble
