// cuda_float_attention.cuh: causal attention of whole windows in float32 and its backward pass, on matrices in device
// memory. Scores and probabilities of all heads of a batch are formed in full: 4 S H T^2 bytes, twice that backwards.
// What attention() and attention_backward() in backend.h and gradient_ops.h do, for several windows at a time.
// S sequences of T positions, H query heads, G key/value heads, d head width.
#pragma once

#include "runtime/cpu/backend.h"
#include "runtime/cuda/kernels/cuda_float_matrix.cuh"

namespace thimble {

class CudaFloatAttention {
 public:
  // q (S*T, H*d), k and v (S*T, G*d) of windows from their start, y (S*T, H*d).
  void forward(ConstCudaView q, ConstCudaView k, ConstCudaView v, const AttentionShape& shape, const BatchShape& batch,
               CudaView y, cudaStream_t stream);
  // The same for later positions too, against a cache: keys and values (S * capacity, G*d), q and y of positions
  // [batch.first_position, ...) of each sequence. Scores and weights are rounded as `shape` says.
  void forward_cached(ConstCudaView q, ConstCudaView k, ConstCudaView v, int64_t capacity, const AttentionShape& shape,
                      const BatchShape& batch, CudaView y, cudaStream_t stream);
  // From the gradient of y to those of q, k and v; dy is overwritten.
  void backward(ConstCudaView q, ConstCudaView k, ConstCudaView v, const AttentionShape& shape, const BatchShape& batch,
                CudaView dy, CudaView dq, CudaView dk, CudaView dv, cudaStream_t stream);

 private:
  DeviceArray<float> probabilities_, gradients_;  // (S, H, T, score_stride())
  CudaFloatMatrix y_;                             // outputs before XSA
};

// Floats from one row of scores to the next: rows begin at multiples of 16 bytes.
constexpr int64_t score_stride(int64_t positions) { return (positions + 3) / 4 * 4; }

}  // namespace thimble
