// cuda_step_attention.cu: attention of one new query per sequence over its cached keys and values, on ordinary cores:
// in float32, with rounding, and for heads that cuda_step_attention_mma.cu leaves. One CTA per sequence and key/value
// head serves two of the query heads that share it.
//
// A key's row is read by kLanes neighbouring lanes, eight elements each; so a warp reads 32 / kLanes keys at once, and
// eight warps take turns. Every group of lanes keeps its own online softmax; a fixed order puts the groups of a warp,
// then the warps together at the end. Where weights are rounded, a first sweep over the keys finds the softmax's sums.
// The first keys of earlier positions are on their way to the L2 cache while the kernel before this one computes the
// query (cuda_overlap.cuh).
#include "runtime/cuda/kernels/attention/cuda_attention.h"
#include "runtime/cuda/kernels/attention/cuda_step_sums.cuh"

namespace thimble {
namespace {

constexpr int kWarps = kStepSoftmaxes;

// Over a warp's groups of kLanes lanes, for lanes of equal place in them: a fixed tree.
template <int kLanes>
__device__ float sum_over_groups(float value) {
#pragma unroll
  for (int distance = kLanes; distance < 32; distance *= 2) value += __shfl_xor_sync(~0u, value, distance);
  return value;
}
template <int kLanes>
__device__ float max_over_groups(float value) {
#pragma unroll
  for (int distance = kLanes; distance < 32; distance *= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, distance));
  return value;
}

template <typename T, int kHead, int kShared, bool kRounds>  // kShared query heads read the same keys
__global__ void __launch_bounds__(kWarps * 32) step_attention_kernel(const AttentionOperands<T> operands) {
  constexpr int kElements = 8, kLanes = kHead / kElements, kGroups = kWarps * 32 / kLanes;
  constexpr int kUnroll = 4, kPrefetched = 2;  // keys of a group
  __shared__ StepSums<kShared, kHead> all;

  int64_t sequence = blockIdx.x;
  int first_head = static_cast<int>(blockIdx.y) * kShared;
  int kv_head = first_head / (operands.heads / operands.kv_heads), kv_stride = 2 * operands.kv_heads * kHead;
  int group = static_cast<int>(threadIdx.x) / kLanes, part = static_cast<int>(threadIdx.x) % kLanes * kElements;
  T* query = operands.query + (sequence * operands.heads + first_head) * kHead;
  const T* key = operands.keys + sequence * operands.capacity * kv_stride + kv_head * kHead + part;
  int keys = *operands.first + operands.offset + 1, first_key = first_seen(keys - 1, operands.window);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;

#pragma unroll
  for (int u = 0; u < kPrefetched; ++u) {
    const int64_t row = first_key + u * kGroups + group;
    if (row >= keys - 1) break;
    prefetch(key + row * kv_stride);
    prefetch(key + row * kv_stride + operands.kv_heads * kHead);
  }
  wait_for_previous();
  let_next_begin();
  const OwnValue<T, kHead> own(operands, kShared, keys);
  float q[kShared][kElements], out[kShared][kElements] = {}, peak[kShared], sum[kShared] = {};
#pragma unroll
  for (int h = 0; h < kShared; ++h) {
    Stored8<T>::load(query + h * kHead + part).unpack(q[h]);
    peak[h] = -INFINITY;
  }
  const FixedPoint score_rounding(operands.rounding.scores);
  auto sweep = [&](const auto& take) {  // take(h, score, value)
    for (int start = first_key; start < keys; start += kGroups * kUnroll) {
      Stored8<T> stored_key[kUnroll], stored_value[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {  // all reads first: many in flight
        int64_t row = min(start + u * kGroups + group, keys - 1);
        stored_key[u] = Stored8<T>::load(key + row * kv_stride);
        stored_value[u] = Stored8<T>::load(key + row * kv_stride + operands.kv_heads * kHead);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        float k[kElements], v[kElements];
        stored_key[u].unpack(k);
        stored_value[u].unpack(v);
        bool exists = start + u * kGroups + group < keys;
#pragma unroll
        for (int h = 0; h < kShared; ++h) {
          float score = 0;
#pragma unroll
          for (int e = 0; e < kElements; ++e) score = fmaf(q[h][e], k[e], score);
          score = sum_over_lanes<kLanes>(score);
          if (exists) take(h, score, v);
        }
      }
    }
  };
  auto exponent = [&](float score) { return to_float(from_float<T>(score_rounding(score))) * operands.rounding.scale; };
  if constexpr (kRounds) {
    sweep([&](int h, float score, const auto&) { sum[h] += exp2_fast(exponent(score)); });
#pragma unroll
    for (int h = 0; h < kShared; ++h) {
      const float of_warp = sum_over_groups<kLanes>(sum[h]);
      if (lane == 0) all.sums[warp][h] = of_warp;
    }
    __syncthreads();
    float log_sum[kShared];
#pragma unroll
    for (int h = 0; h < kShared; ++h) {
      float total = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) total += all.sums[w][h];
      log_sum[h] = log2f(total);
    }
    sweep([&](int h, float score, const auto& v) {
      float p = to_float(from_float<T>(rounded_weight(exponent(score), log_sum[h])));
#pragma unroll
      for (int e = 0; e < kElements; ++e) out[h][e] = fmaf(p, v[e], out[h][e]);
    });
  } else {
    sweep([&](int h, float score, const auto& v) {
      float largest = fmaxf(peak[h], score), old_factor = exp2f(peak[h] - largest), p = exp2f(score - largest);
      peak[h] = largest;
      sum[h] = sum[h] * old_factor + p;
#pragma unroll
      for (int e = 0; e < kElements; ++e) out[h][e] = fmaf(p, v[e], out[h][e] * old_factor);
    });
  }
#pragma unroll
  for (int h = 0; h < kShared; ++h) {
    float factor = 1;
    if constexpr (!kRounds) {
      const float largest = max_over_groups<kLanes>(peak[h]);
      factor = peak[h] == -INFINITY ? 0 : exp2f(peak[h] - largest);  // of a group that saw no key: 0
      sum[h] = sum_over_groups<kLanes>(sum[h] * factor);
      if (lane == 0) {
        all.peaks[warp][h] = largest;
        all.sums[warp][h] = sum[h];
      }
    }
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      out[h][e] = sum_over_groups<kLanes>(out[h][e] * factor);
      if (lane < kLanes) all.outputs[warp][h][part + e] = out[h][e];
    }
  }
  finish_step<kRounds, kWarps>(all, operands, kShared, query, own);
}

template <typename T, int kHead, bool kRounds>
void launch(const AttentionOperands<T>& operands, cudaStream_t stream) {
  auto with_shared = [&]<int kShared>(std::integral_constant<int, kShared>) {
    dim3 grid(static_cast<unsigned>(operands.sequences), static_cast<unsigned>(operands.heads / kShared));
    launch_kernel(step_attention_kernel<T, kHead, kShared, kRounds>, {grid, kWarps * 32, 0, 1, /*overlaps=*/true},
                  stream, operands);
  };
  if (operands.heads / operands.kv_heads % 2 == 0) return with_shared(std::integral_constant<int, 2>());
  with_shared(std::integral_constant<int, 1>());
}

}  // namespace

template <typename T>
void launch_step_attention(const AttentionOperands<T>& operands, int head_width, cudaStream_t stream) {
  with_head_width(head_width, [&]<int kHead>(std::integral_constant<int, kHead>) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      if (operands.rounding.exists()) return launch<T, kHead, true>(operands, stream);
    }
    assert(!operands.rounding.exists());
    if constexpr (sizeof(T) == 2 && kHead <= kMostStepMmaWidth)
      launch_step_attention_mma(operands, head_width, stream);
    else
      launch<T, kHead, false>(operands, stream);
  });
}

template void launch_step_attention(const AttentionOperands<float>&, int, cudaStream_t);
template void launch_step_attention(const AttentionOperands<__nv_bfloat16>&, int, cudaStream_t);
template void launch_step_attention(const AttentionOperands<__half>&, int, cudaStream_t);

}  // namespace thimble
