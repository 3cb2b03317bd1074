// cuda_attention.h: causal attention over whole windows and over a key/value cache. Host interface for .cu files.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cassert>
#include <cstdint>
#include <type_traits>

#include "runtime/ops/attention_window.h"
#include "runtime/tensor/rounding.h"

namespace thimble {

// What is rounded to fixed point, and then to T: scores q.k, before they are scaled; weights after their normalisation,
// to Q1.15; outputs.
struct AttentionRounding {
  Rounding scores, outputs;
  float scale = 1;  // weights are 2^(scale * score) before their normalisation

  bool exists() const { return scores.value != Format::kFp32; }
};
// Rounded scores lie within +-1, so that 2^(scale * score) needs no maximum to be subtracted first.
constexpr float kLargestRoundedScale = 100;

// XSA divides by no smaller norm of an own value.
constexpr float kLeastValueNorm = 1e-12f;

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
  int window;           // attention_window.h
  AttentionRounding rounding;
};

// body(std::integral_constant<int, kHead>) of a width of 32, 64, 128 or 256.
template <typename Body>
void with_head_width(int head_width, const Body& body) {
  assert(head_width == 32 || head_width == 64 || head_width == 128 || head_width == 256);
  if (head_width == 32) return body(std::integral_constant<int, 32>());
  if (head_width == 64) return body(std::integral_constant<int, 64>());
  if (head_width == 128) return body(std::integral_constant<int, 128>());
  body(std::integral_constant<int, 256>());
}

template <typename T>
void launch_window_attention(const AttentionOperands<T>& operands, int head_width, cudaStream_t stream);

// The same on Hopper's own units, for heads of kSm90HeadWidth, __nv_bfloat16 or __half, without rounding or `window`.
// Requires has_sm90_kernels().
constexpr int kSm90HeadWidth = 64;
template <typename T>
void launch_window_attention_sm90(const AttentionOperands<T>& operands, cudaStream_t stream);

// One query per sequence (positions = 1), for generation.
template <typename T>
void launch_step_attention(const AttentionOperands<T>& operands, int head_width, cudaStream_t stream);

// The same on tensor cores, for heads of at most kMostStepMmaWidth, __nv_bfloat16 or __half, without rounding.
constexpr int kMostStepMmaWidth = 128;
template <typename T>
void launch_step_attention_mma(const AttentionOperands<T>& operands, int head_width, cudaStream_t stream);

}  // namespace thimble
