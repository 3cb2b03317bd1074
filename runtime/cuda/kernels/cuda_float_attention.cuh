// cuda_float_attention.cuh: causal attention of whole windows and its backward pass, on float32 matrices in device
// memory, with products in the arithmetic asked for and all else in float32. Scores and probabilities of all heads of a
// batch are formed in full: 4 S H T^2 bytes, twice that backwards. What CpuPass does for op::Attention, for several
// windows at a time. S sequences of T positions, H query heads, G key/value heads, d head width.
#pragma once

#include "runtime/cuda/kernels/cuda_float_product.cuh"
#include "runtime/ops/network.h"
#include "runtime/ops/token_batch.h"

namespace thimble {

class CudaFloatAttention {
 public:
  CudaFloatAttention() = default;
  // With room for so many scores, twice, and for so many elements of outputs that are exclusive; more is taken when it
  // is needed.
  CudaFloatAttention(int64_t scores, int64_t outputs, ProductArithmetic arithmetic)
      : arithmetic_(arithmetic),
        probabilities_(scores, "attention scores"),
        gradients_(scores, "attention scores"),
        y_(outputs) {}

  // q (S*T, H*d), k and v (S*T, G*d) of windows from their start, y (S*T, H*d).
  void forward(ConstCudaView q, ConstCudaView k, ConstCudaView v, const op::Attention& shape, const BatchShape& batch,
               CudaView y, cudaStream_t stream);
  // From the gradient of y to those of q, k and v; dy is overwritten.
  void backward(ConstCudaView q, ConstCudaView k, ConstCudaView v, const op::Attention& shape, const BatchShape& batch,
                CudaView dy, CudaView dq, CudaView dk, CudaView dv, cudaStream_t stream);

 private:
  ProductArithmetic arithmetic_ = ProductArithmetic::kFloat32;
  DeviceArray<float> probabilities_, gradients_;  // (S, H, T, score_stride())
  DeviceArray<float> y_;                          // outputs before XSA
};

// Floats from one row of scores to the next: rows begin at multiples of 16 bytes.
constexpr int64_t score_stride(int64_t positions) { return (positions + 3) / 4 * 4; }

}  // namespace thimble
