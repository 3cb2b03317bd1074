// cuda_window_attention.cu: flash attention (Dao, arXiv 2307.08691) with exclusive self-attention in its epilogue, on
// any device since sm_80. One CTA of four warps per 64 queries of one head: each warp owns 16 of them, walks over tiles
// of 64 keys, from the first that a query of the CTA sees up to the diagonal, with an online softmax, and never writes
// scores to memory. T = __nv_bfloat16, __half: tensor cores; probabilities are rounded to T before they meet the
// values.  T = float: fp32.
//
// Where weights are rounded they must be normalised first: a first sweep over the keys finds the softmax's sums, the
// second one forms weights and outputs.
#include "runtime/cuda/kernels/cuda_attention.h"
#include "runtime/cuda/kernels/cuda_attention_rows.cuh"

namespace thimble {
namespace {

using gemm_detail::commit_copies;
using gemm_detail::load_matrices_transposed;
using gemm_detail::multiply_add;
using gemm_detail::SharedTile;
using gemm_detail::wait_for_copies;

constexpr int kTile = 64;  // queries of a CTA, and keys of a step
constexpr int kWarps = gemm_detail::kThreads / 32;

// kTile rows of one head, those that exist, as they lie in shared memory.
template <typename T, int kHead>
struct HeadTile : SharedTile<kHead * sizeof(T)> {
  static constexpr int kBytes = kTile * kHead * static_cast<int>(sizeof(T));

  static __device__ void load(uint32_t shared, const T* source, int64_t stride, int rows) {
    gemm_detail::load_tile<HeadTile, kTile>(shared, reinterpret_cast<const char*>(source),
                                            stride * static_cast<int64_t>(sizeof(T)), 0, rows, 0, HeadTile::kRowBytes);
  }
};

// out (16 x kHead of this warp) += P V.
template <int kHead, typename T>
__device__ void multiply_values(FragmentValues<kHead>& out, const FragmentValues<kTile>& p, uint32_t values,
                                const T* type) {
  using Tile = HeadTile<T, kHead>;
  int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < kTile / 16; ++k) {  // the accumulators of two key columns are the operand of one product
    uint32_t a[4] = {packed<T>(p[2 * k][0], p[2 * k][1]), packed<T>(p[2 * k][2], p[2 * k][3]),
                     packed<T>(p[2 * k + 1][0], p[2 * k + 1][1]), packed<T>(p[2 * k + 1][2], p[2 * k + 1][3])};
#pragma unroll
    for (int j = 0; j < kHead / 8; j += 2) {
      uint32_t b[4];
      load_matrices_transposed(b, values + Tile::at(k * 16 + lane % 16, j + lane / 16));
      multiply_add(out[j], a, b[0], b[1], type);
      multiply_add(out[j + 1], a, b[2], b[3], type);
    }
  }
}
template <int kHead>
__device__ void multiply_values(FragmentValues<kHead>& out, const FragmentValues<kTile>& p, uint32_t values,
                                const float*) {
  using Tile = HeadTile<float, kHead>;
  int lane = threadIdx.x % 32;
#pragma unroll
  for (int key = 0; key < kTile; ++key) {
    int owner = lane / 4 * 4 + key % 8 / 2;
    float upper = __shfl_sync(~0u, p[key / 8][key % 2], owner),
          lower = __shfl_sync(~0u, p[key / 8][2 + key % 2], owner);
#pragma unroll
    for (int j = 0; j < kHead / 8; ++j) {
      float2 v;
      uint32_t at = values + Tile::at(key, 2 * j + lane % 4 / 2) + static_cast<uint32_t>(lane % 2 * 8);
      asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];\n" : "=f"(v.x), "=f"(v.y) : "r"(at));
      out[j][0] = fmaf(upper, v.x, out[j][0]);
      out[j][1] = fmaf(upper, v.y, out[j][1]);
      out[j][2] = fmaf(lower, v.x, out[j][2]);
      out[j][3] = fmaf(lower, v.y, out[j][3]);
    }
  }
}

// Scores become weights above the largest so far; sums and outputs follow a larger one.
template <int kHead>
__device__ void weigh(FragmentValues<kTile>& scores, float (&peak)[2], float (&sum)[2], FragmentValues<kHead>& out) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float largest = peak[half];
#pragma unroll
    for (int j = 0; j < kTile / 8; ++j) largest = fmaxf(largest, fmaxf(scores[j][2 * half], scores[j][2 * half + 1]));
    largest = max_over_lanes<4>(largest);
    const float base = largest == -INFINITY ? 0 : largest;  // a row may see none of these keys
    float old_factor = exp2f(peak[half] - base);            // 0 at the first step
    peak[half] = largest;
    float added = 0;
#pragma unroll
    for (int j = 0; j < kTile / 8; ++j)
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        scores[j][i] = exp2f(scores[j][i] - base);
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

// As they are written, and then scaled: exponents.
template <typename T>
__device__ void round_scores(const AttentionRounding& rounding, FragmentValues<kTile>& scores) {
  const FixedPoint fixed(rounding.scores);
#pragma unroll
  for (int j = 0; j < kTile / 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const float2 stored = stored_pair<T>(fixed(scores[j][i]), fixed(scores[j][i + 1]));
      scores[j][i] = stored.x * rounding.scale;
      scores[j][i + 1] = stored.y * rounding.scale;
    }
}
__device__ void add_weights(const FragmentValues<kTile>& exponents, float (&sum)[2]) {
#pragma unroll
  for (int j = 0; j < kTile / 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i / 2] += exp2_fast(exponents[j][i]);
}
__device__ void round_weights(FragmentValues<kTile>& exponents, const float (&log_sum)[2]) {
#pragma unroll
  for (int j = 0; j < kTile / 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) exponents[j][i] = rounded_weight(exponents[j][i], log_sum[i / 2]);
}

template <typename T, int kHead, int kStages, bool kRounds>
__global__ void __launch_bounds__(kWarps * 32) window_attention_kernel(const AttentionOperands<T> operands) {
  using Tile = HeadTile<T, kHead>;
  extern __shared__ __align__(128) char shared_memory[];
  auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(shared_memory));
  // Late tiles see the most keys; starting with them balances the multiprocessors.
  int tile = static_cast<int>(gridDim.x - 1 - blockIdx.x), head = static_cast<int>(blockIdx.y);
  int64_t sequence = blockIdx.z;
  int first_query = tile * kTile, first_position = *operands.first + operands.offset + first_query;
  int queries = min(kTile, operands.positions - first_query), keys = first_position + queries;
  int kv_head = head / (operands.heads / operands.kv_heads), kv_stride = 2 * operands.kv_heads * kHead;
  int64_t query_stride = operands.heads * kHead;
  T* query = operands.query + (sequence * operands.positions + first_query) * query_stride + head * kHead;
  const T* key = operands.keys + sequence * operands.capacity * kv_stride + kv_head * kHead;
  const T* value = key + operands.kv_heads * kHead;

  int first_tile = first_seen(first_position, operands.window) / kTile;
  int tiles = divide_up(keys, kTile) - first_tile, steps = kRounds ? 2 * tiles : tiles;
  auto is_last_sweep = [&](int step) { return !kRounds || step >= tiles; };
  auto first_key_of = [&](int step) { return (first_tile + (step < tiles ? step : step - tiles)) * kTile; };
  uint32_t tiles_at = shared + Tile::kBytes;
  auto load_step = [&](int step) {
    uint32_t at = tiles_at + static_cast<uint32_t>(step % kStages * 2 * Tile::kBytes);
    int first_key = first_key_of(step);
    int64_t skipped = static_cast<int64_t>(first_key) * kv_stride;
    Tile::load(at, key + skipped, kv_stride, keys - first_key);
    if (is_last_sweep(step)) Tile::load(at + Tile::kBytes, value + skipped, kv_stride, keys - first_key);
  };
  Tile::load(shared, query, query_stride, queries);
#pragma unroll
  for (int step = 0; step < kStages - 1; ++step) {
    if (step < steps) load_step(step);
    commit_copies();
  }

  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = warp * 16 + lane / 4;
  FragmentValues<kHead> out = {};
  float peak[2] = {-INFINITY, -INFINITY}, sum[2] = {}, log_sum[2] = {};
  for (int step = 0; step < steps; ++step) {
    if constexpr (kStages == 1) {
      __syncthreads();
      load_step(step);
      commit_copies();
      wait_for_copies<0>();
      __syncthreads();
    } else {
      wait_for_copies<kStages - 2>();
      __syncthreads();
      if (step + kStages - 1 < steps) load_step(step + kStages - 1);
      commit_copies();
    }
    uint32_t at = tiles_at + static_cast<uint32_t>(step % kStages * 2 * Tile::kBytes);
    FragmentValues<kTile> fragments[1] = {};
    auto& scores = fragments[0];
    gemm_detail::multiply_tiles<1, kTile, Tile>(fragments, shared, at, static_cast<const T*>(nullptr));
    if constexpr (kRounds) round_scores<T>(operands.rounding, scores);
    int first_key = first_key_of(step);
    if (first_key + kTile - 1 > first_position + warp * 16) {  // the diagonal passes here
#pragma unroll
      for (int j = 0; j < kTile / 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (first_key + 8 * j + lane % 4 * 2 + i % 2 > first_position + row + i / 2 * 8) scores[j][i] = -INFINITY;
    }
    if (first_key < first_seen(first_position + warp * 16 + 15, operands.window)) {  // a window begins here
#pragma unroll
      for (int j = 0; j < kTile / 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (first_key + 8 * j + lane % 4 * 2 + i % 2 < first_seen(first_position + row + i / 2 * 8, operands.window))
            scores[j][i] = -INFINITY;
    }
    if constexpr (!kRounds) {
      weigh<kHead>(scores, peak, sum, out);
    } else {
      if (!is_last_sweep(step)) {
        add_weights(scores, sum);
        continue;
      }
      if (step == tiles) {
        log_sum[0] = log2f(sum_over_lanes<4>(sum[0]));
        log_sum[1] = log2f(sum_over_lanes<4>(sum[1]));
      }
      round_weights(scores, log_sum);
    }
    multiply_values<kHead>(out, scores, at + Tile::kBytes, static_cast<const T*>(nullptr));
  }

  AttentionRows<T> rows{value + static_cast<int64_t>(first_position) * kv_stride,
                        kv_stride,
                        query,
                        query_stride,
                        queries,
                        operands.exclusive};
  OwnValues<T, kHead / 8> own(rows, row);
  if constexpr (kRounds) {
    finish_attention(out, {1, 1}, own);
    const FixedPoint rounding(operands.rounding.outputs);
#pragma unroll
    for (int j = 0; j < kHead / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) out[j][i] = rounding(out[j][i]);
  } else {
    finish_attention(out, {1 / sum_over_lanes<4>(sum[0]), 1 / sum_over_lanes<4>(sum[1])}, own);
  }
  store_rows(out, row, rows);
}

template <typename T, int kHead, bool kRounds>
void launch(const AttentionOperands<T>& operands, cudaStream_t stream) {
  constexpr int kStages = HeadTile<T, kHead>::kRowBytes >= 512 || sizeof(T) == 4 ? 1 : 3;
  constexpr int kSharedBytes = HeadTile<T, kHead>::kBytes * (1 + 2 * kStages);
  dim3 grid(static_cast<unsigned>(divide_up(operands.positions, kTile)), static_cast<unsigned>(operands.heads),
            static_cast<unsigned>(operands.sequences));
  launch_kernel(window_attention_kernel<T, kHead, kStages, kRounds>, {grid, kWarps * 32, kSharedBytes}, stream,
                operands);
}

}  // namespace

template <typename T>
void launch_window_attention(const AttentionOperands<T>& operands, int head_width, cudaStream_t stream) {
  with_head_width(head_width, [&]<int kHead>(std::integral_constant<int, kHead>) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      if (operands.rounding.exists()) return launch<T, kHead, true>(operands, stream);
    }
    assert(!operands.rounding.exists());
    launch<T, kHead, false>(operands, stream);
  });
}

template void launch_window_attention(const AttentionOperands<float>&, int, cudaStream_t);
template void launch_window_attention(const AttentionOperands<__nv_bfloat16>&, int, cudaStream_t);
template void launch_window_attention(const AttentionOperands<__half>&, int, cudaStream_t);

}  // namespace thimble
