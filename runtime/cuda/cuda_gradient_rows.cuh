// cuda_gradient_rows.cuh: transposes of the row operations of network.h, on one stream. Arithmetic is float32, rows are
// stored as T = float or __nv_bfloat16. d<x> is the gradient of the loss by x. The formulas are derived in
// cpu_kernels.cpp. `adds`: to what dx holds; otherwise dx may be dy, but for smear(). A row's result depends on its own
// sequence alone.
#pragma once

#include "runtime/cuda/cuda_node_rows.cuh"

namespace thimble {

template <typename T>
class CudaGradientRows {
 public:
  using View = BasicCudaView<T>;
  using ConstView = BasicCudaView<const T>;

  explicit CudaGradientRows(cudaStream_t stream) : stream_(stream) {}

  void zero(View x) const;
  // dx = factor * scale * dy; `scale` a vector, or null: 1. Nothing to do where dx is dy and both are 1.
  void scale(ConstView dy, const float* scale, float factor, bool adds, View dx) const;
  // out = x - bias.
  void subtract(ConstView x, const float* bias, View out) const;
  // dx = (1 - gate) * weight * dy.
  void scale_ungated(ConstView dy, const float* weight, const float* gate, bool adds, View dx) const;
  void rms_norm(ConstView x, const float* gain, float factor, float epsilon, ConstView dy, bool adds, View dx) const;
  void layer_norm(ConstView x, const float* weight, float epsilon, ConstView dy, bool adds, View dx) const;
  // op::Heads at positions row % positions. gain_terms, unless empty: by columns, what the gradients of gains are sums
  // of, dy before the rotation times norm(x).
  void heads(ConstView x, int64_t head_dim, float epsilon, const float* norm_gain, const float* head_gain,
             const NodeRotation& rotation, int64_t positions, ConstView dy, bool adds, View dx, View gain_terms) const;
  void activate(Activation activation, ConstView x, ConstView dy, bool adds, View dx) const;
  // y = f(x) * a: by x, and by a.
  void gate(Activation activation, ConstView x, ConstView a, ConstView dy, bool adds, View dx) const;
  void gated(Activation activation, ConstView x, ConstView dy, bool adds, View da) const;
  void smear(ConstView dy, const float* gate, int64_t positions, bool adds, View dx) const;
  // In which the gate of a smear moves its output: out[p] = x[p-1] - x[p].
  void smear_direction(ConstView x, int64_t positions, View out) const;
  // (x - mean) / sqrt(variance + epsilon).
  void normalise(ConstView x, float epsilon, View out) const;

 private:
  // As CudaNodeRows has them.
  template <typename Make>
  void launch_wide(bool has_vectors_too, bool adds, View dx, const Make& make) const;
  template <typename Function>
  void write_rows(bool has_vectors_too, bool adds, View dx, const Function& function) const;

  cudaStream_t stream_;
};

}  // namespace thimble
