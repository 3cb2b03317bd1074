// cuda_bf16_attention.cuh: causal attention of whole windows and its backward pass, on bf16 matrices in device memory,
// on tensor cores (mma.sync): weights and their gradients are rounded to bf16, sums are float32. Backwards, y . dy is
// subtracted from dy . v, which nearly equals it where values are much alike: so a row's weights add up to 1 as they
// are rounded, and outputs keep twice the bits of bf16. Scores stay on the chip (flash attention, Dao, arXiv
// 2307.08691, algorithms 1 and 2) and are computed again backwards, once by queries and once by keys: every output has
// one writer, and its sum one order, whatever the batch. Wider heads take more registers than there are: these are
// converted to float32, for cuda_float_attention.cuh.
#pragma once

#include <cuda_bf16.h>

#include "runtime/cuda/kernels/attention/cuda_float_attention.cuh"

namespace thimble {

constexpr int64_t kWidestBf16Head = 128;
// Columns that a head of at most so many takes.
constexpr int64_t bf16_head_width(int64_t head_dim) { return head_dim <= 32 ? 32 : head_dim <= 64 ? 64 : 128; }

// What a backward pass asks of the forward pass of the same attention; nothing of heads that are too wide.
struct CudaAttentionSums {
  DeviceArray<float> log_sums;   // (S, H, T): of weights, to the base of 2
  DeviceArray<float> along_own;  // (S, H, T): y . v / |v| of the own value, before XSA takes it away; empty without XSA
  DeviceArray<__nv_bfloat16> remainders;  // (S*T, H*d): what rounding to bf16 left of y

  void reserve(const op::Attention& shape, const BatchShape& batch) {
    if (shape.head_dim > kWidestBf16Head) return;
    log_sums.reserve(batch.rows() * shape.heads, "attention");
    if (shape.exclusive) along_own.reserve(log_sums.count(), "attention");
    remainders.reserve(batch.rows() * shape.heads * shape.head_dim, "attention");
  }
};

// Heads side by side, each of the width that the kernels have: zeros beyond head_dim.
struct Bf16Heads {
  const __nv_bfloat16* data = nullptr;
  int64_t stride = 0;
};

// Of a batch, as the kernels read it. Weights are 2^(score_scale * q.k).
struct Bf16AttentionOperands {
  Bf16Heads q, k, v, dy;        // (S*T, H*width), (S*T, G*width) twice, (S*T, H*width)
  float *log_sums, *along_own;  // CudaAttentionSums
  __nv_bfloat16* remainders;    // likewise
  float* along;                 // (S, H, T): y . dy
  int positions, heads, kv_heads, window, head_dim;
  float score_scale;
};

class CudaBf16Attention {
 public:
  // Takes the memory that such batches need, one at a time; more is taken when it is needed.
  void reserve(const op::Attention& shape, const BatchShape& batch);

  // Does backward() read `y` and `sums`?
  static bool reads_outputs(const op::Attention& shape) { return shape.head_dim <= kWidestBf16Head; }

  // q (S*T, H*d), k and v (S*T, G*d) of windows from their start, y (S*T, H*d).
  void forward(ConstBf16View q, ConstBf16View k, ConstBf16View v, const op::Attention& shape, const BatchShape& batch,
               CudaAttentionSums& sums, Bf16View y, cudaStream_t stream);
  // From y, its gradient, and what forward() left in `sums`, to the gradients of q, k and v, which lie elsewhere.
  void backward(ConstBf16View q, ConstBf16View k, ConstBf16View v, ConstBf16View y, ConstBf16View dy,
                const op::Attention& shape, const BatchShape& batch, const CudaAttentionSums& sums, Bf16View dq,
                Bf16View dk, Bf16View dv, cudaStream_t stream);

 private:
  // In float32.
  struct Wide {
    CudaFloatAttention attention{ProductArithmetic::kBf16};
    CudaFloatMatrix q, k, v, y, dq, dk, dv;  // y: or its gradient

    void resize(const op::Attention& shape, const BatchShape& batch);
  };
  Bf16AttentionOperands operands(ConstBf16View q, ConstBf16View k, ConstBf16View v, const op::Attention& shape,
                                 const BatchShape& batch, const CudaAttentionSums& sums, cudaStream_t stream);

  DeviceArray<__nv_bfloat16> q_, k_, v_, dy_;  // heads that do not lie as the kernels read them
  DeviceArray<float> along_;
  Wide wide_;
};

}  // namespace thimble
