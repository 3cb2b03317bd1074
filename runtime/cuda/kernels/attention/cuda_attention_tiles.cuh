// cuda_attention_tiles.cuh: what attention on mma.sync walks over (flash attention, Dao, arXiv 2307.08691): tiles of
// one head's rows in shared memory, products whose left factor is a warp's fragment of scores, and the online softmax.
#pragma once

#include "runtime/cuda/kernels/cuda_gemm.cuh"
#include "runtime/ops/attention_window.h"

namespace thimble {

constexpr int kAttentionTile = 64;  // queries or keys of a CTA: 16 of each of its warps
constexpr int kAttentionWarps = gemm_detail::kThreads / 32;

// kRows rows of one head, those that exist, as they lie in shared memory.
template <typename T, int kHead, int kRows = kAttentionTile>
struct HeadTile : gemm_detail::SharedTile<kHead * sizeof(T)> {
  static constexpr int kBytes = kRows * kHead * static_cast<int>(sizeof(T));

  static __device__ void load(uint32_t shared, const T* source, int64_t stride, int rows) {
    gemm_detail::load_tile<HeadTile, kRows>(shared, reinterpret_cast<const char*>(source),
                                            stride * static_cast<int64_t>(sizeof(T)), 0, rows, 0, HeadTile::kRowBytes);
  }
};

// out += P V of this warp's fragments of 16 rows, with P rounded to T and V a tile of kDepth rows.
template <int kHead, int kDepth, typename T, int kRowFragments>
__device__ void multiply_values(FragmentValues<kHead> (&out)[kRowFragments],
                                const FragmentValues<kDepth> (&p)[kRowFragments], uint32_t values, const T* type) {
  using Tile = HeadTile<T, kHead, kDepth>;
  int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k) {  // the accumulators of two key columns are the operand of one product
    uint32_t a[kRowFragments][4];
#pragma unroll
    for (int f = 0; f < kRowFragments; ++f)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = p[f][2 * k + i / 2] + i % 2 * 2;
        a[f][i] = packed<T>(pair[0], pair[1]);
      }
#pragma unroll
    for (int j = 0; j < kHead / 8; j += 2) {
      uint32_t b[4];
      gemm_detail::load_matrices_transposed(b, values + Tile::at(k * 16 + lane % 16, j + lane / 16));
#pragma unroll
      for (int f = 0; f < kRowFragments; ++f) {
        gemm_detail::multiply_add(out[f][j], a[f], b[0], b[1], type);
        gemm_detail::multiply_add(out[f][j + 1], a[f], b[2], b[3], type);
      }
    }
  }
}

template <int kHead, int kDepth>
__device__ void multiply_values(FragmentValues<kHead> (&out)[1], const FragmentValues<kDepth> (&p)[1], uint32_t values,
                                const float*) {
  using Tile = HeadTile<float, kHead, kDepth>;
  int lane = threadIdx.x % 32;
#pragma unroll
  for (int key = 0; key < kDepth; ++key) {
    int owner = lane / 4 * 4 + key % 8 / 2;
    float upper = __shfl_sync(~0u, p[0][key / 8][key % 2], owner),
          lower = __shfl_sync(~0u, p[0][key / 8][2 + key % 2], owner);
#pragma unroll
    for (int j = 0; j < kHead / 8; ++j) {
      float2 v;
      uint32_t at = values + Tile::at(key, 2 * j + lane % 4 / 2) + static_cast<uint32_t>(lane % 2 * 8);
      asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];\n" : "=f"(v.x), "=f"(v.y) : "r"(at));
      float(&to)[4] = out[0][j];
      to[0] = fmaf(upper, v.x, to[0]);
      to[1] = fmaf(upper, v.y, to[1]);
      to[2] = fmaf(lower, v.x, to[2]);
      to[3] = fmaf(lower, v.y, to[3]);
    }
  }
}

// A warp's scores, rows queries and columns keys from these on, become -infinity where a query does not see a key.
template <int kKeys>
__device__ void mask_scores(int first_query, int first_key, int window, FragmentValues<kKeys>& scores) {
  const int lane = threadIdx.x % 32;
  if (first_key + kKeys - 1 > first_query) {  // the diagonal passes here
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (first_key + 8 * j + lane % 4 * 2 + i % 2 > first_query + lane / 4 + i / 2 * 8) scores[j][i] = -INFINITY;
  }
  if (first_key < first_seen(first_query + 15, window)) {  // a window begins here
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (first_key + 8 * j + lane % 4 * 2 + i % 2 < first_seen(first_query + lane / 4 + i / 2 * 8, window))
          scores[j][i] = -INFINITY;
  }
}

// Scores, logarithms to the base of 2, become weights above the largest so far, rounded to a Weight before they are
// summed; sums and outputs follow a larger one.
template <int kHead, int kKeys, typename Weight = float>
__device__ void weigh(FragmentValues<kKeys>& scores, float (&peak)[2], float (&sum)[2], FragmentValues<kHead>& out) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float largest = peak[half];
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) largest = fmaxf(largest, fmaxf(scores[j][2 * half], scores[j][2 * half + 1]));
    largest = max_over_lanes<4>(largest);
    const float base = largest == -INFINITY ? 0 : largest;  // a row may see none of these keys
    float old_factor = exp2_fast(peak[half] - base);        // 0 at the first step
    peak[half] = largest;
    float added = 0;
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        scores[j][i] = to_float(from_float<Weight>(exp2_fast(scores[j][i] - base)));
        added += scores[j][i];
      }
    sum[half] = sum[half] * old_factor + added;
#pragma unroll
    for (int j = 0; j < kHead / 8; ++j) {
      out[j][2 * half] *= old_factor;
      out[j][2 * half + 1] *= old_factor;
    }
  }
}

}  // namespace thimble
