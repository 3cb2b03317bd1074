// cuda_bf16_attention_rows.cuh: rows before the kernels of cuda_bf16_attention.cuh: heads padded to the width that
// these have, and what the gradients of scores begin with.
#pragma once

#include "runtime/cuda/kernels/attention/cuda_attention.h"
#include "runtime/cuda/kernels/attention/cuda_bf16_attention.cuh"
#include "runtime/cuda/kernels/attention/cuda_bf16_attention_sums.cuh"
#include "runtime/cuda/kernels/cuda_head_lanes.cuh"

namespace thimble {

// (rows, heads * head_dim) to (rows, heads * width). A row is one position.
struct PadHeads {
  ConstBf16View from;
  int heads, head_dim, width;
  __nv_bfloat16* to;

  __device__ void operator()(int64_t row, int lane) const {
    const __nv_bfloat16* in = from.data + row * from.stride;
    store_columns(to + row * heads * width, heads * width, lane, [&](int64_t c) {
      const auto head = static_cast<int>(c) / width, column = static_cast<int>(c) % width;
      const __nv_bfloat16 value = in[head * head_dim + min(column, head_dim - 1)];
      return column < head_dim ? value : __float2bfloat16_rn(0.0f);
    });
  }
};

// What comes before the gradients of scores: dy as the kernels read it, and y . dy; with XSA, of the gradient by what
// was before it, whose part by the own value is where dv begins (remove_own_value_backward() of cpu_kernels.cpp). The
// heads that share a key/value head of one position are dealt out in turn to the lanes of so many heads of a warp.
template <int kLanes, int kPieces, int kWidth>
struct PrepareGradients {
  RowHeads all;  // `sharing` for each of keys and values
  int sharing;   // a power of two that divides the heads of a group
  ConstBf16View v, y, dy;
  Bf16AttentionOperands in;
  bool exclusive;
  __nv_bfloat16* to;  // (rows, heads * width), or null: the kernels read dy where it lies
  int width;
  Bf16View dv;

  __device__ void operator()(int64_t warp, int warp_lane) const {
    const HeadLanes<kLanes, kPieces, kWidth> lanes(all, warp, warp_lane);
    using Values = float[kPieces * kWidth];
    const int d = in.head_dim, group = in.heads / in.kv_heads, kv_head = lanes.head / sharing;
    const int sequence = lanes.row / in.positions, position = lanes.row % in.positions;
    const int64_t at = lanes.row;
    auto dot = [&](const Values& a, const Values& b) { return lanes.sum(d, [&](int i, int) { return a[i] * b[i]; }); };
    Values own = {}, down = {};
    if (exclusive) lanes.load(v.data + at * v.stride + kv_head * d, d, own);
    for (int head = kv_head * group + lanes.head % sharing; head < (kv_head + 1) * group; head += sharing) {
      Values out = {}, remainder, g = {};
      lanes.load(y.data + at * y.stride + head * d, d, out);
      lanes.load(in.remainders + (at * in.heads + head) * d, d, remainder);
      lanes.load(dy.data + at * dy.stride + head * d, d, g);
      const int64_t of_head = first_of(in, sequence, head) + position;
      const float y_along = exclusive ? in.along_own[of_head] : 0;
      // All are on their way before the first sum over lanes waits.
      lanes.for_columns(d, [&](int i, int) { out[i] += remainder[i]; });
      if (exclusive) {
        const float norm = sqrtf(dot(own, own)), inverse = 1 / fmaxf(norm, kLeastValueNorm);
        const float g_along = dot(g, own) * inverse;
        const float along = norm > kLeastValueNorm ? -2 * y_along * g_along : 0.0f;
        lanes.for_columns(d, [&](int i, int) {
          const float unit = inverse * own[i];
          out[i] += y_along * unit;
          down[i] -= inverse * (y_along * g[i] + g_along * out[i] + along * unit);
          g[i] -= g_along * unit;
        });
      }
      if (to) {
        lanes.for_columns(d, [&](int i, int) { g[i] = to_float(__float2bfloat16_rn(g[i])); });
        __nv_bfloat16* rounded = to + (at * in.heads + head) * width;
        if (lanes.exists) {
          lanes.store(g, d, rounded);
          for (int c = d + lanes.lane; c < width; c += kLanes) rounded[c] = __float2bfloat16_rn(0.0f);
        }
      }
      const float sum = dot(out, g);
      if (lanes.lane == 0 && lanes.exists) in.along[of_head] = sum;
    }
    if (!exclusive) return;
    for (int apart = kLanes; apart < kLanes * sharing; apart *= 2)
      for (float& value : down) value += __shfl_xor_sync(~0u, value, apart);
    if (lanes.exists && lanes.head % sharing == 0) lanes.store(down, d, dv.data + at * dv.stride + kv_head * d);
  }
};

// Elements as they are, rounded to what they are stored as.
template <typename From, typename To>
struct ConvertRows {
  BasicCudaView<const From> from;
  BasicCudaView<To> to;

  __device__ void operator()(int64_t row, int lane) const {
    const From* in = from.data + row * from.stride;
    store_columns(to.data + row * to.stride, to.columns, lane,
                  [&](int64_t c) { return from_float<To>(to_float(in[c])); });
  }
};

}  // namespace thimble
