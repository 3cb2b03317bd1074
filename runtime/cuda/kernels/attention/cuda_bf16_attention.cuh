// cuda_bf16_attention.cuh: causal attention of whole windows and its backward pass, in float32 matrices, on tensor
// cores (mma.sync): operands, weights and their gradients are rounded to bf16, sums are float32. Weights that multiply
// values count with twice the bits of bf16, as y . dy asks for, from which dy . v is subtracted backwards. Scores stay
// on the chip (flash attention, Dao, arXiv 2307.08691, algorithms 1 and 2) and are computed again backwards, once by
// queries and once by keys: every output has one writer, and its sum one order, whatever the batch.
#pragma once

#include <cuda_bf16.h>

#include <span>

#include "runtime/cuda/kernels/cuda_float_matrix.cuh"
#include "runtime/ops/network.h"
#include "runtime/ops/token_batch.h"

namespace thimble {

// Wider heads take more registers than there are.
constexpr int64_t kWidestBf16Head = 128;

// What a backward pass asks of the forward pass of the same attention.
struct CudaAttentionSums {
  DeviceArray<float> log_sums;   // (S, H, T): of weights, to the base of 2
  DeviceArray<float> along_own;  // (S, H, T): y . v / |v| of the own value, before XSA takes it away; empty without XSA

  void reserve(const op::Attention& shape, const BatchShape& batch) {
    log_sums.reserve(batch.rows() * shape.heads, "attention");
    if (shape.exclusive) along_own.reserve(log_sums.count(), "attention");
  }
};

// Of a batch, as the kernels read it: H heads of `width` side by side, zeros beyond head_dim. q is scaled so that
// weights are 2^(q.k).
struct Bf16AttentionOperands {
  const __nv_bfloat16 *q, *k, *v, *dy;  // (S*T, H*width), (S*T, G*width) twice, (S*T, H*width)
  float *log_sums, *along_own;          // CudaAttentionSums
  float* along;                         // (S, H, T): y . dy
  int positions, heads, kv_heads, window, head_dim;
};

class CudaBf16Attention {
 public:
  // Takes the memory that such batches need, one at a time.
  void reserve(std::span<const op::Attention> shapes, const BatchShape& batch);

  // q (S*T, H*d), k and v (S*T, G*d) of windows from their start, y (S*T, H*d). d <= kWidestBf16Head.
  void forward(ConstCudaView q, ConstCudaView k, ConstCudaView v, const op::Attention& shape, const BatchShape& batch,
               CudaAttentionSums& sums, CudaView y, cudaStream_t stream);
  // From y, its gradient, and what forward() left in `sums`, to the gradients of q, k and v.
  void backward(ConstCudaView q, ConstCudaView k, ConstCudaView v, ConstCudaView y, ConstCudaView dy,
                const op::Attention& shape, const BatchShape& batch, const CudaAttentionSums& sums, CudaView dq,
                CudaView dk, CudaView dv, cudaStream_t stream);

 private:
  Bf16AttentionOperands operands(const op::Attention& shape, const BatchShape& batch,
                                 const CudaAttentionSums& sums) const;
  void round_inputs(ConstCudaView q, ConstCudaView k, ConstCudaView v, const op::Attention& shape,
                    const BatchShape& batch, cudaStream_t stream);

  DeviceArray<__nv_bfloat16> q_, k_, v_, dy_;
  DeviceArray<float> along_;
};

}  // namespace thimble
