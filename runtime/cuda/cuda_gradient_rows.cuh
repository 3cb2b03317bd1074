// cuda_gradient_rows.cuh: transposes of the row operations of network.h, in float32, on one stream. d<x> is the
// gradient of the loss by x. The formulas are derived in cpu_kernels.cpp. `adds`: to what dx holds; otherwise
// dx may be dy, but for smear(). A row's result depends on its own sequence alone.
#pragma once

#include "runtime/cuda/cuda_node_rows.cuh"

namespace thimble {

class CudaGradientRows {
 public:
  // `rounds`, unless null, is asked whether gradients are wanted in bf16 besides. It must outlive the object.
  explicit CudaGradientRows(cudaStream_t stream, const RoundsRows* rounds = nullptr)
      : stream_(stream), rounds_(rounds) {}

  void zero(CudaView x) const;
  // dx = factor * scale * dy; `scale` a vector, or null: 1. Nothing to do where dx is dy and both are 1.
  void scale(ConstCudaView dy, const float* scale, float factor, bool adds, CudaView dx) const;
  // out = x - bias.
  void subtract(ConstCudaView x, const float* bias, CudaView out) const;
  // dx = (1 - gate) * weight * dy.
  void scale_ungated(ConstCudaView dy, const float* weight, const float* gate, bool adds, CudaView dx) const;
  void rms_norm(ConstCudaView x, const float* gain, float factor, float epsilon, ConstCudaView dy, bool adds,
                CudaView dx) const;
  void layer_norm(ConstCudaView x, const float* weight, float epsilon, ConstCudaView dy, bool adds, CudaView dx) const;
  // op::Heads at positions row % positions.
  void heads(ConstCudaView x, int64_t head_dim, float epsilon, const float* norm_gain, const float* head_gain,
             const NodeRotation& rotation, int64_t positions, ConstCudaView dy, bool adds, CudaView dx) const;
  // The rotation of heads alone, for gradients of their gains.
  void rotate_back(int64_t head_dim, const NodeRotation& rotation, int64_t positions, ConstCudaView dy,
                   CudaView dx) const;
  void activate(Activation activation, ConstCudaView x, ConstCudaView dy, bool adds, CudaView dx) const;
  // y = f(x) * a: by x, and by a.
  void gate(Activation activation, ConstCudaView x, ConstCudaView a, ConstCudaView dy, bool adds, CudaView dx) const;
  void gated(Activation activation, ConstCudaView x, ConstCudaView dy, bool adds, CudaView da) const;
  void smear(ConstCudaView dy, const float* gate, int64_t positions, bool adds, CudaView dx) const;
  // In which the gate of a smear moves its output: out[p] = x[p-1] - x[p].
  void smear_direction(ConstCudaView x, int64_t positions, CudaView out) const;
  // (x - mean) / sqrt(variance + epsilon).
  void normalise(ConstCudaView x, float epsilon, CudaView out) const;

 private:
  // As CudaNodeRows has them.
  template <typename Make>
  void launch_wide(bool has_vectors_too, bool adds, CudaView dx, const Make& make) const;
  template <typename Function>
  void write_rows(bool has_vectors_too, bool adds, CudaView dx, const Function& function) const;

  cudaStream_t stream_;
  const RoundsRows* rounds_;
};

}  // namespace thimble
