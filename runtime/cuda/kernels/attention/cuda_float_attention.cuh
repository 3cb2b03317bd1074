// cuda_float_attention.cuh: causal attention of whole windows and its backward pass, on float32 matrices in device
// memory, with products in the arithmetic asked for and all else in float32: scores and probabilities of all heads of a
// batch are formed in full: 4 S H T^2 bytes, twice that backwards. What CpuPass does for op::Attention, for several
// windows at a time. S sequences of T positions, H query heads, G key/value heads, d head width.
#pragma once

#include "runtime/cuda/kernels/cuda_float_matrix.cuh"
#include "runtime/ops/network.h"
#include "runtime/ops/token_batch.h"
#include "runtime/tensor/product_arithmetic.h"

namespace thimble {

class CudaFloatAttention {
 public:
  explicit CudaFloatAttention(ProductArithmetic arithmetic = ProductArithmetic::kFloat32) : arithmetic_(arithmetic) {}
  // Takes the memory that such batches need forwards and backwards, one at a time; more is taken when it is needed.
  void reserve(const op::Attention& shape, const BatchShape& batch);

  // q (S*T, H*d), k and v (S*T, G*d) of windows from their start, y (S*T, H*d).
  void forward(ConstCudaView q, ConstCudaView k, ConstCudaView v, const op::Attention& shape, const BatchShape& batch,
               CudaView y, cudaStream_t stream);
  // From the gradient of y to those of q, k and v. dy may be overwritten.
  void backward(ConstCudaView q, ConstCudaView k, ConstCudaView v, const op::Attention& shape, const BatchShape& batch,
                CudaView dy, CudaView dq, CudaView dk, CudaView dv, cudaStream_t stream);

 private:
  ProductArithmetic arithmetic_;
  DeviceArray<float> probabilities_, gradients_;  // (S, H, T, score_stride())
  DeviceArray<float> y_;                          // outputs before XSA
};

}  // namespace thimble
