// cuda_bf16_attention_rows.cuh: rows before the kernels of cuda_bf16_attention.cu: heads rounded to bf16, and what the
// gradients of scores begin with.
#pragma once

#include "runtime/cuda/kernels/attention/cuda_attention.h"
#include "runtime/cuda/kernels/attention/cuda_bf16_attention.cuh"
#include "runtime/cuda/kernels/cuda_row_kernel.cuh"

namespace thimble {

// Heads of float32 as the kernels read them: (rows, heads * head_dim) to (rows, heads * width), times factor.
struct RoundedHeads {
  ConstCudaView from;
  float factor;
  int heads;
  __nv_bfloat16* to;
};

// A row is one position.
struct RoundHeads {
  static constexpr int kAtOnce = 8;  // elements of a lane; they divide `width`
  RoundedHeads all[3];
  int head_dim, width;

  __device__ void operator()(int64_t row, int lane) const {
#pragma unroll
    for (const RoundedHeads& heads : all) {
      const float* from = heads.from.data + row * heads.from.stride;
      __nv_bfloat16* to = heads.to + row * heads.heads * width;
      for (int c = lane * kAtOnce; c < heads.heads * width; c += 32 * kAtOnce) {
        const int head = c / width, column = c % width;
        const float* values = from + head * head_dim + column;
        float v[kAtOnce];
        if (column + kAtOnce <= head_dim && reinterpret_cast<uintptr_t>(values) % 16 == 0) {
          load_floats(values, v);
        } else {
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) v[i] = column + i < head_dim ? values[i] : 0.0f;
        }
#pragma unroll
        for (float& value : v) value *= heads.factor;
        Stored8<__nv_bfloat16>::rounded(v).store(to + c);
      }
    }
  }
};

// What comes before the gradients of scores: dy rounded, and y . dy of what is; with XSA, of the gradient by what was
// before it, whose part by the own value is where dv begins (remove_own_value_backward() of cpu_kernels.cpp). A row is
// one key/value head of one position; lane l has columns l, l + 32, ... of `width`, kPieces of them.
template <int kPieces>
struct PrepareGradients {
  ConstCudaView v, y, dy;
  Bf16AttentionOperands in;
  bool exclusive;
  __nv_bfloat16* to;
  CudaView dv;

  __device__ void operator()(int64_t row, int lane) const {
    constexpr int kWidth = 32 * kPieces;
    const int64_t at = row / in.kv_heads, sequence = at / in.positions, position = at % in.positions;
    const int kv_head = static_cast<int>(row % in.kv_heads), group = in.heads / in.kv_heads;
    auto read = [&](const ConstCudaView& from, int head, float(&values)[kPieces]) {
      const float* of_head = from.data + at * from.stride + head * int64_t{in.head_dim};
#pragma unroll
      for (int i = 0; i < kPieces; ++i) values[i] = lane + 32 * i < in.head_dim ? of_head[lane + 32 * i] : 0.0f;
    };
    auto dot = [&](const float(&a)[kPieces], const float(&b)[kPieces]) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kPieces; ++i) sum += a[i] * b[i];
      return sum_over_lanes<32>(sum);
    };
    float own[kPieces] = {}, down[kPieces] = {};
    if (exclusive) read(v, kv_head, own);
    const float norm = sqrtf(dot(own, own)), inverse = 1 / fmaxf(norm, kLeastValueNorm);
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      float out[kPieces], g[kPieces];
      read(y, head, out);
      read(dy, head, g);
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
      __nv_bfloat16* rounded = to + (at * in.heads + head) * kWidth + lane;
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const __nv_bfloat16 stored = __float2bfloat16_rn(g[i]);
        rounded[32 * i] = stored;
        g[i] = __bfloat162float(stored);
      }
      const float sum = dot(out, g);
      if (lane == 0) in.along[of_head] = sum;
    }
    if (!exclusive) return;
    float* begins = dv.data + at * dv.stride + kv_head * int64_t{in.head_dim};
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      if (lane + 32 * i < in.head_dim) begins[lane + 32 * i] = down[i];
  }
};

}  // namespace thimble
