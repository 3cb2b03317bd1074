// cuda_step_attention_mma.cu: attention of one new query per sequence over its cached keys and values on tensor cores,
// in bf16 or fp16. The time is that of reading the cache once: one CTA per sequence and key/value head serves all query
// heads that share it, up to eight, which are rows of mma.m16n8k16's operand A.
//
// A CTA keeps eight online softmaxes, which take 16 keys at a time, in turn; a fixed order puts them together at the
// end. They have a warp each; or there are more CTAs than a device runs at once, then half as many warps take two, one
// after the other, and twice as many CTAs find room. A row's result does not depend on that.
//
// Keys and values are read from memory straight into registers, 16 bytes a lane: lane l has key l / 4 of eight, and of
// every 32 columns those from 8 (l % 4) on. For scores columns only change their names, since queries are read alike.
// For outputs values lie across what the operand B wants, and are transposed eight keys by eight columns (movmatrix);
// so a lane's sums are again eight neighbouring columns. Weights are rounded to T, and it is the rounded ones whose sum
// divides.
#include <algorithm>

#include "runtime/cuda/kernels/attention/cuda_attention.h"
#include "runtime/cuda/kernels/attention/cuda_step_sums.cuh"

namespace thimble {
namespace {

constexpr int kMostHeads = 8;                // of a CTA: the first rows of a fragment, the other eight are zero
constexpr int kHalf = 8, kKeys = 2 * kHalf;  // keys of a warp's step
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

// A lane's columns of 16 keys' rows, one of each eight, or of their values'.
template <typename T, int kHead>
struct TileRows {
  RowColumns<T, kHead> halves[2];

  // Of keys from `start` on; beyond `last` it stands for them. `first`: of a sequence.
  __device__ void load(const T* first, int64_t stride, int start, int last) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t key = min(start + half * kHalf + static_cast<int>(threadIdx.x) % 32 / 4, last);
      halves[half].load(first + key * stride);
    }
  }
};

// Of a lane's row and its pair of keys of each half.
using Scores = float[2][4];

template <typename T, int kHead>
__device__ void multiply_keys(const RowColumns<T, kHead>& q, const TileRows<T, kHead>& keys, Scores& scores) {
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int c = 0; c < kHead / kChunk; ++c) {
      const uint4 &a = q.chunks[c], &b = keys.halves[half].chunks[c];
      multiply_heads<T>(scores[half], a.x, a.y, b.x, b.y);
      multiply_heads<T>(scores[half], a.z, a.w, b.z, b.w);
    }
}

// An online softmax, in a warp.
template <typename T, int kHead>
struct OnlineSoftmax {
  static constexpr int kChunks = kHead / kChunk;
  float out[kChunks][4][4] = {}, peak = -INFINITY, sum = 0;  // of 8 columns of a chunk, as pairs

  // Of keys from `start` on, those before `count`.
  __device__ void add(Scores& scores, const TileRows<T, kHead>& values, int start, int count) {
    const int first = start + static_cast<int>(threadIdx.x) % 4 * 2;
    float largest = peak;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (first + half * kHalf + e >= count) scores[half][e] = -INFINITY;
        largest = fmaxf(largest, scores[half][e]);
      }
    largest = max_over_lanes<4>(largest);
    const float factor = exp2f(peak - largest);
    peak = largest;
    sum *= factor;
    uint32_t weights[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      StoredPair<T> stored;
      const float2 rounded =
          store_pair(stored.values, {exp2f(scores[half][0] - largest), exp2f(scores[half][1] - largest)});
      sum += rounded.x + rounded.y;
      weights[half] = *reinterpret_cast<const uint32_t*>(stored.values);
    }
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const uint4 &upper = values.halves[0].chunks[c], &lower = values.halves[1].chunks[c];
      const uint32_t first_half[4] = {upper.x, upper.y, upper.z, upper.w};
      const uint32_t second_half[4] = {lower.x, lower.y, lower.z, lower.w};
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        out[c][pair][0] *= factor;
        out[c][pair][1] *= factor;
        multiply_heads<T>(out[c][pair], weights[0], weights[1], transposed(first_half[pair]),
                          transposed(second_half[pair]));
      }
    }
  }

  // As number `index` of a CTA's.
  __device__ void store(StepSums<kMostHeads, kHead>& all, int index, int heads) {
    const int lane = static_cast<int>(threadIdx.x) % 32, row = lane / 4, part = lane % 4 * 8;
    sum = sum_over_lanes<4>(sum);
    if (row >= heads) return;
    if (lane % 4 == 0) {
      all.peaks[index][row] = peak;
      all.sums[index][row] = sum;
    }
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
#pragma unroll
      for (int pair = 0; pair < 4; ++pair)
        store_pair(&all.outputs[index][row][c * kChunk + part + 2 * pair], {out[c][pair][0], out[c][pair][1]});
  }
};

// With kStepSoftmaxes warps, of which a multiprocessor has registers for 16 or 8.
constexpr int ctas_at_once(int head_width) { return head_width <= 64 ? 2 : 1; }

template <typename T, int kHead, int kWarps>
__global__ void __launch_bounds__(kWarps * 32, ctas_at_once(kHead) * kStepSoftmaxes / kWarps)
    step_attention_mma_kernel(const AttentionOperands<T> operands, int heads) {
  constexpr int kStride = kStepSoftmaxes * kKeys;  // between a softmax's tiles
  __shared__ StepSums<kMostHeads, kHead> all;

  const int64_t sequence = blockIdx.x;
  const int first_head = static_cast<int>(blockIdx.y) * heads;
  const int kv_head = first_head / (operands.heads / operands.kv_heads), kv_stride = 2 * operands.kv_heads * kHead;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane / 4, part = lane % 4 * 8;  // a head, and a lane's columns of a chunk
  T* query = operands.query + (sequence * operands.heads + first_head) * kHead;
  const T* keys = operands.keys + sequence * operands.capacity * kv_stride + kv_head * kHead + part;
  const T* values = keys + operands.kv_heads * kHead;
  const int count = *operands.first + operands.offset + 1, first_key = first_seen(count - 1, operands.window);

  TileRows<T, kHead> k, v;
  auto load_keys = [&](int start) { k.load(keys, kv_stride, start, count - 1); };
  auto load_values = [&](int start) { v.load(values, kv_stride, start, count - 1); };
  // A warp's first keys, before the kernel before this one has ended, unless it makes one of them, the newest.
  const bool loads_early = first_key + (warp + 1) * kKeys < count;
  if (loads_early) {
    load_keys(first_key + warp * kKeys);
    load_values(first_key + warp * kKeys);
  }
  wait_for_previous();
  let_next_begin();
  RowColumns<T, kHead> q{};
  if (row < heads) q.load(query + row * kHead + part);
  const OwnValue<T, kHead> own(operands, heads, count);
#pragma unroll
  for (int index = warp; index < kStepSoftmaxes; index += kWarps) {
    OnlineSoftmax<T, kHead> softmax;
    int start = first_key + index * kKeys;
    if (start < count && !(index == warp && loads_early)) {
      load_keys(start);
      load_values(start);
    }
    for (; start < count; start += kStride) {
      // The next keys are on their way as soon as these have been multiplied, and so are the next values.
      const bool has_next = start + kStride < count;
      Scores scores{};
      multiply_keys(q, k, scores);
      if (has_next) load_keys(start + kStride);
      softmax.add(scores, v, start, count);
      if (has_next) load_values(start + kStride);
    }
    softmax.store(all, index, heads);
  }
  finish_step</*kRounds=*/false, kWarps>(all, operands, heads, query, own);
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
    if constexpr (kHead <= kMostStepMmaWidth) {
      auto launch = [&]<int kWarps>(std::integral_constant<int, kWarps>) {
        launch_kernel(step_attention_mma_kernel<T, kHead, kWarps>, {grid, kWarps * 32, 0, 1, /*overlaps=*/true}, stream,
                      operands, heads);
      };
      constexpr int kSoftmaxes = kStepSoftmaxes, kFewWarps = kStepSoftmaxes / 2;
      if (static_cast<int>(grid.x * grid.y) > ctas_at_once(kHead) * multiprocessors())
        return launch(std::integral_constant<int, kFewWarps>());
      launch(std::integral_constant<int, kSoftmaxes>());
    }
  });
}

template void launch_step_attention_mma(const AttentionOperands<__nv_bfloat16>&, int, cudaStream_t);
template void launch_step_attention_mma(const AttentionOperands<__half>&, int, cudaStream_t);

}  // namespace thimble
