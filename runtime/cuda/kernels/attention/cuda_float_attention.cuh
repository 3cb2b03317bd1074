// cuda_float_attention.cuh: causal attention of whole windows and its backward pass, on float32 matrices in device
// memory, with products in the arithmetic asked for and all else in float32. In bf16, scores stay on the chip
// (cuda_bf16_attention.cuh) where heads are narrow enough; else scores and probabilities of all heads of a batch are
// formed in full: 4 S H T^2 bytes, twice that backwards. What CpuPass does for op::Attention, for several windows at a
// time. S sequences of T positions, H query heads, G key/value heads, d head width.
#pragma once

#include "runtime/cuda/kernels/attention/cuda_bf16_attention.cuh"
#include "runtime/cuda/kernels/products/cuda_float_product.cuh"
#include "runtime/ops/network.h"
#include "runtime/ops/token_batch.h"

namespace thimble {

class CudaFloatAttention {
 public:
  explicit CudaFloatAttention(ProductArithmetic arithmetic = ProductArithmetic::kFloat32) : arithmetic_(arithmetic) {}
  // Takes the memory that such batches need forwards and backwards, one at a time; more is taken when it is needed.
  void reserve(std::span<const op::Attention> shapes, const BatchShape& batch);

  // Else `sums` and `y` of backward() are not read.
  bool keeps_scores_on_chip(const op::Attention& shape) const {
    return arithmetic_ == ProductArithmetic::kBf16 && shape.head_dim <= kWidestBf16Head;
  }

  // q (S*T, H*d), k and v (S*T, G*d) of windows from their start, y (S*T, H*d).
  void forward(ConstCudaView q, ConstCudaView k, ConstCudaView v, const op::Attention& shape, const BatchShape& batch,
               CudaAttentionSums& sums, CudaView y, cudaStream_t stream);
  // From y, its gradient, and what forward() left in `sums`, to the gradients of q, k and v. dy may be overwritten.
  void backward(ConstCudaView q, ConstCudaView k, ConstCudaView v, ConstCudaView y, const op::Attention& shape,
                const BatchShape& batch, const CudaAttentionSums& sums, CudaView dy, CudaView dq, CudaView dk,
                CudaView dv, cudaStream_t stream);

 private:
  ProductArithmetic arithmetic_;
  CudaBf16Attention on_chip_;
  DeviceArray<float> probabilities_, gradients_;  // (S, H, T, score_stride())
  DeviceArray<float> y_;                          // outputs before XSA
};

}  // namespace thimble
