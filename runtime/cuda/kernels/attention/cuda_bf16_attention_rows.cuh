// cuda_bf16_attention_rows.cuh: rows before the kernels of cuda_bf16_attention.cu: heads padded to the width that these
// have, and what the gradients of scores begin with.
#pragma once

#include "runtime/cuda/kernels/attention/cuda_attention.h"
#include "runtime/cuda/kernels/attention/cuda_bf16_attention.cuh"
#include "runtime/cuda/kernels/cuda_row_kernel.cuh"

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
// was before it, whose part by the own value is where dv begins (remove_own_value_backward() of cpu_kernels.cpp). A row
// is one key/value head of one position; lane l has columns l, l + 32, ... of `width`, kPieces of them.
template <int kPieces>
struct PrepareGradients {
  ConstBf16View v, y, dy;
  Bf16AttentionOperands in;
  bool exclusive;
  __nv_bfloat16* to;  // null: the kernels read dy where it lies
  Bf16View dv;

  __device__ void operator()(int64_t row, int lane) const {
    constexpr int kWidth = 32 * kPieces;
    const int64_t at = row / in.kv_heads, sequence = at / in.positions, position = at % in.positions;
    const int kv_head = static_cast<int>(row % in.kv_heads), group = in.heads / in.kv_heads;
    auto read = [&](const __nv_bfloat16* of_row, int head, float(&values)[kPieces]) {
      const __nv_bfloat16* of_head = of_row + head * int64_t{in.head_dim};
#pragma unroll
      for (int i = 0; i < kPieces; ++i)
        values[i] = lane + 32 * i < in.head_dim ? to_float(of_head[lane + 32 * i]) : 0.0f;
    };
    auto dot = [&](const float(&a)[kPieces], const float(&b)[kPieces]) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kPieces; ++i) sum += a[i] * b[i];
      return sum_over_lanes<32>(sum);
    };
    float own[kPieces] = {}, down[kPieces] = {};
    if (exclusive) read(v.data + at * v.stride, kv_head, own);
    const float norm = sqrtf(dot(own, own)), inverse = 1 / fmaxf(norm, kLeastValueNorm);
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      float out[kPieces], remainder[kPieces], g[kPieces];
      read(y.data + at * y.stride, head, out);
      read(in.remainders + at * in.heads * in.head_dim, head, remainder);
      read(dy.data + at * dy.stride, head, g);
#pragma unroll
      for (int i = 0; i < kPieces; ++i) out[i] += remainder[i];
      const int64_t of_head = (sequence * in.heads + head) * in.positions + position;
      if (exclusive) {
        const float y_along = in.along_own[of_head], g_along = dot(g, own) * inverse;
        const float along = norm > kLeastValueNorm ? -2 * y_along * g_along : 0.0f;
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
          const float unit = inverse * own[i];
          out[i] += y_along * unit;
          down[i] -= inverse * (y_along * g[i] + g_along * out[i] + along * unit);
          g[i] -= g_along * unit;
        }
      }
      if (to) {
        __nv_bfloat16* rounded = to + (at * in.heads + head) * kWidth + lane;
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
          const __nv_bfloat16 stored = __float2bfloat16_rn(g[i]);
          rounded[32 * i] = stored;
          g[i] = __bfloat162float(stored);
        }
      }
      const float sum = dot(out, g);
      if (lane == 0) in.along[of_head] = sum;
    }
    if (!exclusive) return;
    __nv_bfloat16* begins = dv.data + at * dv.stride + kv_head * int64_t{in.head_dim};
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      if (lane + 32 * i < in.head_dim) begins[lane + 32 * i] = __float2bfloat16_rn(down[i]);
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
