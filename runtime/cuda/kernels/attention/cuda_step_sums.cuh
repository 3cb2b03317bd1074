// cuda_step_sums.cuh: how both kernels of one query per sequence put the softmaxes of their warps together, in a fixed
// order.
#pragma once

#include "runtime/cuda/kernels/attention/cuda_attention_rows.cuh"
#include "runtime/cuda/kernels/cuda_overlap.cuh"

namespace thimble {

constexpr int kStepSoftmaxes = 8;  // of a CTA, each of one warp

// Of a CTA's softmaxes, for each of at most kMostHeads query heads: the largest score, or -infinity for one that saw no
// key, and relative to its weight the sums of weights and of weighted values.
template <int kMostHeads, int kHead>
struct StepSums {
  float peaks[kStepSoftmaxes][kMostHeads], sums[kStepSoftmaxes][kMostHeads];
  float outputs[kStepSoftmaxes][kMostHeads][kHead];
};

// A lane's columns of the newest position's value, which its CTA's query heads share. A warp needs them that puts a
// head's softmaxes together.
template <typename T, int kHead>
struct OwnValue {
  static constexpr int kColumns = kHead / 32;  // kHead is a multiple of 32
  T columns[kColumns] = {};

  __device__ OwnValue(const AttentionOperands<T>& operands, int heads, int keys) {
    if (static_cast<int>(threadIdx.x) / 32 >= heads) return;
    const int kv_head = static_cast<int>(blockIdx.y) * heads / (operands.heads / operands.kv_heads);
    const T* value = operands.keys + (blockIdx.x * operands.capacity + keys - 1) * (2 * operands.kv_heads * kHead) +
                     (operands.kv_heads + kv_head) * kHead;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) columns[i] = value[i * 32 + static_cast<int>(threadIdx.x) % 32];
  }
};

// `query`: of the CTA's `heads` heads, replaced by their outputs. With kRounds weights are normalised already. Waits
// for all of the CTA's kWarps warps, which have written their sums.
template <bool kRounds, int kWarps, typename T, int kMostHeads, int kHead>
__device__ void finish_step(const StepSums<kMostHeads, kHead>& all, const AttentionOperands<T>& operands, int heads,
                            T* query, const OwnValue<T, kHead>& own_value) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kColumns = OwnValue<T, kHead>::kColumns;
  float own[kColumns];
#pragma unroll
  for (int i = 0; i < kColumns; ++i) own[i] = to_float(own_value.columns[i]);
  __syncthreads();

  for (int h = warp; h < heads; h += kWarps) {
    float largest = kRounds ? 0 : -INFINITY, total = kRounds ? 1 : 0;
    if constexpr (!kRounds) {
#pragma unroll
      for (int w = 0; w < kStepSoftmaxes; ++w) largest = fmaxf(largest, all.peaks[w][h]);
    }
    float y[kColumns] = {};
#pragma unroll
    for (int w = 0; w < kStepSoftmaxes; ++w) {
      float factor = 1;
      if constexpr (!kRounds) {
        factor = exp2f(all.peaks[w][h] - largest);  // 0 for one that saw no key
        total += all.sums[w][h] * factor;
      }
#pragma unroll
      for (int i = 0; i < kColumns; ++i) y[i] = fmaf(all.outputs[w][h][i * 32 + lane], factor, y[i]);
    }
    float along = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      y[i] /= total;
      along += y[i] * own[i];
      squares += own[i] * own[i];
    }
    float removed = 0;
    if (operands.exclusive) {
      float length = fmaxf(sqrtf(sum_over_lanes<32>(squares)), kLeastValueNorm);
      removed = sum_over_lanes<32>(along) / length / length;
    }
    const FixedPoint rounding(operands.rounding.outputs);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      float value = y[i] - removed * own[i];
      query[h * kHead + i * 32 + lane] = from_float<T>(kRounds ? rounding(value) : value);
    }
  }
}

}  // namespace thimble
