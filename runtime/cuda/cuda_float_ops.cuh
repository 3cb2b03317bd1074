// cuda_float_ops.cuh: the operations of backend.h and gradient_ops.h on matrices in device memory, in float32: what the
// comments there say holds here. All are enqueued on one stream. A row's result depends on its own sequence alone, and
// sums have a fixed order: results are the same bits whatever else is in the batch.
// Vectors (spans there) are device pointers here; null where there a span is empty.
#pragma once

#include "runtime/cpu/backend.h"
#include "runtime/cuda/kernels/cuda_float_matrix.cuh"

namespace thimble {

// How heads are normed and rotated; rows are positions 0 .. positions - 1 of sequences, one after another.
struct HeadRotation {
  int64_t head_dim = 0;
  int64_t positions = 0;
  const float2* angles = nullptr;  // (T, half): cosine and sine
  int64_t half = 0;                // rope_dims / 2
};

class CudaFloatOps {
 public:
  explicit CudaFloatOps(cudaStream_t stream) : stream_(stream) {}
  cudaStream_t stream() const { return stream_; }

  void copy(ConstCudaView from, CudaView to) const;
  void fill_zero(CudaView x) const;

  // Forward (cuda_float_ops.cu). `index` lies in device memory.
  void gather_rows(ConstCudaView table, const int32_t* index, CudaView out) const;
  void linear(ConstCudaView x, ConstCudaView w, CudaView y) const;
  void add_scaled(ConstCudaView a, float scale, CudaView x) const;
  void rms_norm(ConstCudaView x, float c, CudaView y) const;
  // A sequence begins every `positions` rows; nothing precedes its first row.
  void smear(ConstCudaView x, const float* gate, int64_t positions, CudaView out) const;
  void add_skip(ConstCudaView skip, const float* weight, const float* gate, CudaView x) const;
  // u = mix_x * x + mix_x0 * x0.
  void mix(ConstCudaView x, ConstCudaView x0, const float* mix_x, const float* mix_x0, CudaView u) const;
  void add(ConstCudaView a, const float* scale, CudaView x) const;
  // y may be x.
  void norm_and_rotate(ConstCudaView x, const HeadRotation& rotation, const float* gain, CudaView y) const;
  // y = leaky_relu(z, 0.5)^2.
  void leaky_relu_squared(ConstCudaView z, CudaView y) const;
  // y = cap * tanh(x / cap).
  void softcap(ConstCudaView x, float cap, CudaView y) const;

  // Backward (cuda_float_gradients.cu).
  void linear_backward(ConstCudaView dy, ConstCudaView w, CudaView dx) const;
  void linear_backward_add(ConstCudaView dy, ConstCudaView w, CudaView dx) const;
  void scale_backward(ConstCudaView dy, const float* scale, CudaView dx) const;
  void rms_norm_backward(ConstCudaView x, float c, ConstCudaView dy, CudaView dx) const;
  void leaky_relu_squared_backward(ConstCudaView z, CudaView dy) const;
  void norm_and_rotate_backward(ConstCudaView x, const HeadRotation& rotation, const float* gain, CudaView dy) const;
  void smear_backward(ConstCudaView dy, const float* gate, int64_t positions, CudaView dx) const;
  // The directions in which gates move: out[p] = x[p-1] - x[p] of smear(); out = previous - weight * skip of
  // add_skip().
  void smear_gate_direction(ConstCudaView x, int64_t positions, CudaView out) const;
  void skip_gate_direction(ConstCudaView previous, ConstCudaView skip, const float* weight, CudaView out) const;

 private:
  cudaStream_t stream_;
};

}  // namespace thimble
