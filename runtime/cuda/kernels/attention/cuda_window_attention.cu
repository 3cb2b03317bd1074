// cuda_window_attention.cu: flash attention (Dao, arXiv 2307.08691) with exclusive self-attention in its epilogue, on
// any device since sm_80. One CTA of four warps per 64 queries of one head: each warp owns 16 of them, walks over tiles
// of 64 keys, from the first that a query of the CTA sees up to the diagonal, with an online softmax, and never writes
// scores to memory. T = __nv_bfloat16, __half: tensor cores; probabilities are rounded to T before they meet the
// values.  T = float: fp32.
//
// Where weights are rounded they must be normalised first: a first sweep over the keys finds the softmax's sums, the
// second one forms weights and outputs.
#include "runtime/cuda/kernels/attention/cuda_attention.h"
#include "runtime/cuda/kernels/attention/cuda_attention_rows.cuh"
#include "runtime/cuda/kernels/attention/cuda_attention_tiles.cuh"

namespace thimble {
namespace {

using gemm_detail::commit_copies;
using gemm_detail::wait_for_copies;

constexpr int kTile = kAttentionTile;  // queries of a CTA, and keys of a step

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
__global__ void __launch_bounds__(kAttentionWarps * 32) window_attention_kernel(const AttentionOperands<T> operands) {
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
  FragmentValues<kHead> outputs[1] = {};
  auto& out = outputs[0];
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
    mask_scores<kTile>(first_position + warp * 16, first_key, operands.window, scores);
    if constexpr (!kRounds) {
      weigh<kHead, kTile>(scores, peak, sum, out);
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
    multiply_values<kHead, kTile>(outputs, fragments, at + Tile::kBytes, static_cast<const T*>(nullptr));
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
  store_rows(out, row, rows, {true, true});
}

template <typename T, int kHead, bool kRounds>
void launch(const AttentionOperands<T>& operands, cudaStream_t stream) {
  constexpr int kStages = HeadTile<T, kHead>::kRowBytes >= 512 || sizeof(T) == 4 ? 1 : 3;
  constexpr int kSharedBytes = HeadTile<T, kHead>::kBytes * (1 + 2 * kStages);
  dim3 grid(static_cast<unsigned>(divide_up(operands.positions, kTile)), static_cast<unsigned>(operands.heads),
            static_cast<unsigned>(operands.sequences));
  launch_kernel(window_attention_kernel<T, kHead, kStages, kRounds>, {grid, kAttentionWarps * 32, kSharedBytes}, stream,
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
