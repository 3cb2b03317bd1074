// cuda_step_attention_mma.cu: attention of one new query per sequence over its cached keys and values on tensor cores,
// in bf16 or fp16. The time is that of reading the cache once: one CTA per sequence and key/value head serves all query
// heads that share it, up to eight, which are rows of mma.m16n8k16's operand A.
//
// A warp takes 16 keys at a time, its CTA's warps in turn. Keys and values are read from memory straight into
// registers, 16 bytes a lane: lane l has key l / 4 of eight, and of every 32 columns those from 8 (l % 4) on. For
// scores columns only change their names, since queries are read alike. For outputs values lie across what the operand
// B wants, and are transposed eight keys by eight columns (movmatrix); so a lane's sums are again eight neighbouring
// columns. Weights are rounded to T, and it is the rounded ones whose sum divides. Every warp keeps its own online
// softmax; a fixed order puts the warps together at the end.
#include <algorithm>

#include "runtime/cuda/kernels/attention/cuda_attention.h"
#include "runtime/cuda/kernels/attention/cuda_step_sums.cuh"

namespace thimble {
namespace {

constexpr int kMostHeads = 8;                // of a CTA: the first rows of a fragment, the other eight are zero
constexpr int kTile = 8, kKeys = 2 * kTile;  // keys of a warp's step
constexpr int kChunk = 32;                   // columns of which a lane reads 16 bytes

__device__ uint32_t transposed(uint32_t rows) {
  uint32_t columns;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(columns) : "r"(rows));
  return columns;
}

// A lane's columns of its row: of a query, a key or a value.
template <typename T, int kHead>
struct RowColumns {
  uint4 chunks[kHead / kChunk];

  __device__ void load(const T* row) {
#pragma unroll
    for (int c = 0; c < kHead / kChunk; ++c) chunks[c] = *reinterpret_cast<const uint4*>(row + c * kChunk);
  }
};

template <typename T>
__device__ void multiply_heads(float (&sums)[4], uint32_t a0, uint32_t a2, uint32_t b0, uint32_t b1) {
  const uint32_t a[4] = {a0, 0, a2, 0};
  gemm_detail::multiply_add(sums, a, b0, b1, static_cast<const T*>(nullptr));
}

template <typename T, int kHead>
__global__ void __launch_bounds__(kStepWarps * 32, kHead <= 64 ? 2 : 1)
    step_attention_mma_kernel(const AttentionOperands<T> operands, int heads) {
  constexpr int kChunks = kHead / kChunk, kPrefetched = 1;  // steps of a warp
  __shared__ StepSums<kMostHeads, kHead> all;

  const int64_t sequence = blockIdx.x;
  const int first_head = static_cast<int>(blockIdx.y) * heads;
  const int kv_head = first_head / (operands.heads / operands.kv_heads), kv_stride = 2 * operands.kv_heads * kHead;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane / 4, part = lane % 4 * 8;  // a head or a key, and a lane's columns of a chunk
  T* query = operands.query + (sequence * operands.heads + first_head) * kHead;
  const T* keys = operands.keys + sequence * operands.capacity * kv_stride + kv_head * kHead + part;
  const T* values = keys + operands.kv_heads * kHead;
  const int count = *operands.first + operands.offset + 1, first_key = first_seen(count - 1, operands.window);

#pragma unroll
  for (int step = 0; step < kPrefetched; ++step)
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      const int64_t key = first_key + (step * kStepWarps + warp) * kKeys + tile * kTile + row;
      if (key >= count - 1) continue;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        prefetch(keys + key * kv_stride + c * kChunk);
        prefetch(values + key * kv_stride + c * kChunk);
      }
    }
  wait_for_previous();
  let_next_begin();
  RowColumns<T, kHead> q{};
  if (row < heads) q.load(query + row * kHead + part);
  const OwnValue<T, kHead> own(operands, heads, count);
  float out[kChunks][4][4] = {}, peak = -INFINITY, sum = 0;  // of 8 columns of a chunk, as pairs
  for (int start = first_key + warp * kKeys; start < count; start += kStepWarps * kKeys) {
    RowColumns<T, kHead> k[2], v[2];
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      const int64_t key = min(start + tile * kTile + row, count - 1);
      k[tile].load(keys + key * kv_stride);
      v[tile].load(values + key * kv_stride);
    }
    float scores[2][4] = {};
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const uint4 &a = q.chunks[c], &b = k[tile].chunks[c];
        multiply_heads<T>(scores[tile], a.x, a.y, b.x, b.y);
        multiply_heads<T>(scores[tile], a.z, a.w, b.z, b.w);
      }
    float largest = peak;
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (start + tile * kTile + lane % 4 * 2 + e >= count) scores[tile][e] = -INFINITY;
        largest = fmaxf(largest, scores[tile][e]);
      }
    largest = max_over_lanes<4>(largest);
    const float factor = exp2f(peak - largest);
    peak = largest;
    sum *= factor;
    uint32_t weights[2];
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      StoredPair<T> stored;
      const float2 rounded =
          store_pair(stored.values, {exp2f(scores[tile][0] - largest), exp2f(scores[tile][1] - largest)});
      sum += rounded.x + rounded.y;
      weights[tile] = *reinterpret_cast<const uint32_t*>(stored.values);
    }
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const uint4 &upper = v[0].chunks[c], &lower = v[1].chunks[c];
      const uint32_t first[4] = {upper.x, upper.y, upper.z, upper.w}, second[4] = {lower.x, lower.y, lower.z, lower.w};
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        out[c][pair][0] *= factor;
        out[c][pair][1] *= factor;
        multiply_heads<T>(out[c][pair], weights[0], weights[1], transposed(first[pair]), transposed(second[pair]));
      }
    }
  }
  sum = sum_over_lanes<4>(sum);
  if (row < heads) {
    if (lane % 4 == 0) {
      all.peaks[warp][row] = peak;
      all.sums[warp][row] = sum;
    }
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
#pragma unroll
      for (int pair = 0; pair < 4; ++pair)
        store_pair(&all.outputs[warp][row][c * kChunk + part + 2 * pair], {out[c][pair][0], out[c][pair][1]});
  }
  finish_step</*kRounds=*/false>(all, operands, heads, query, own);
}

}  // namespace

template <typename T>
void launch_step_attention_mma(const AttentionOperands<T>& operands, int head_width, cudaStream_t stream) {
  const int sharing = operands.heads / operands.kv_heads;
  int heads = std::min(sharing, kMostHeads);
  while (sharing % heads != 0) --heads;
  const dim3 grid(static_cast<unsigned>(operands.sequences), static_cast<unsigned>(operands.heads / heads));
  assert(head_width <= kMostStepMmaWidth && !operands.rounding.exists());
  with_head_width(head_width, [&]<int kHead>(std::integral_constant<int, kHead>) {
    if constexpr (kHead <= kMostStepMmaWidth)
      launch_kernel(step_attention_mma_kernel<T, kHead>, {grid, kStepWarps * 32, 0, 1, /*overlaps=*/true}, stream,
                    operands, heads);
  });
}

template void launch_step_attention_mma(const AttentionOperands<__nv_bfloat16>&, int, cudaStream_t);
template void launch_step_attention_mma(const AttentionOperands<__half>&, int, cudaStream_t);

}  // namespace thimble
