// cuda_attention.h: causal attention over whole windows and over a key/value cache. Host interface for .cu files.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace thimble {

// softmax(q.k log 2) V: queries come scaled so that weights are 2^(q.k). Heads of width kHead (the padded d). Queries
// (rows, H * kHead) become outputs in place. Keys and values of sequence s, position p lie in row s * capacity + p of
// `keys` (., 2 G * kHead): keys of all heads, then values.
template <typename T>
struct AttentionOperands {
  T* query;
  const T* keys;
  int64_t capacity;
  int sequences;
  int positions;     // queries per sequence: positions offset .. offset + positions of it, after *first
  const int* first;  // in device memory
  int offset;
  int heads, kv_heads;
  float largest_score;  // no |q.k| exceeds it
  bool exclusive;       // XSA: remove from each output its component along the own position's value
};

// head_width: 32, 64 or 128.
template <typename T>
void launch_window_attention(const AttentionOperands<T>& operands, int head_width, cudaStream_t stream);

// The same on Hopper's own units, for heads of kSm90HeadWidth and scores up to kSm90LargestScore, so that 2^(q.k) and
// its sums over a context stay within float32 without a running maximum. Requires has_sm90_kernels().
constexpr int kSm90HeadWidth = 64;
constexpr float kSm90LargestScore = 100;
void launch_window_attention_sm90(const AttentionOperands<__nv_bfloat16>& operands, cudaStream_t stream);

// One query per sequence (positions = 1), for generation.
template <typename T>
void launch_step_attention(const AttentionOperands<T>& operands, int head_width, cudaStream_t stream);

}  // namespace thimble
