// cuda_gradient_pass.cuh: forward and backward pass over a batch of whole windows on one CUDA device, in float32
// whatever the numerics: the instructions of a PassPlan, as CpuPass runs them window by window. A window's gradients
// are the same bits whatever other windows share the batch.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/cuda/cuda_gradient_rows.cuh"
#include "runtime/cuda/cuda_node_runner.cuh"
#include "runtime/cuda/kernels/cuda_column_dots.cuh"
#include "runtime/cuda/kernels/cuda_float_attention.cuh"
#include "runtime/cuda/kernels/cuda_loss.cuh"
#include "runtime/ops/token_batch.h"
#include "runtime/ops/vector_sums.h"

namespace thimble {

// GradientObserver for matrices in device memory, one row per position of the batch's windows, window after window.
// Work that is enqueued on `stream` during the call may read them.
class CudaGradientObserver {
 public:
  virtual ~CudaGradientObserver() = default;
  // `output`: what the matrix gave, y = W x, before anything else was done to it; empty unless the pass keeps outputs.
  // So the gradient by the logarithm of a gain of row r is sum_p gradient[p][r] * output[p][r].
  virtual void on_output_gradient(const std::string& weight, ConstCudaView gradient, ConstCudaView output,
                                  const BatchShape& batch, cudaStream_t stream) = 0;
  // `rows` lie in host memory.
  virtual void on_lookup_gradient(const std::string& table, std::span<const int32_t> rows, ConstCudaView gradient,
                                  const BatchShape& batch, cudaStream_t stream) = 0;
};

// The sums of vector_sums.h in device memory, over any number of backward passes.
class CudaVectorSums {
 public:
  // All zero. On the current device.
  explicit CudaVectorSums(const Network& network);

  // Of a node, by columns; null where it has no such vector.
  double* at(size_t node, int kind) const {
    const int64_t first = layout_.first(node, kind);
    return first < 0 ? nullptr : sums_.data() + first;
  }
  void set_zero(cudaStream_t stream);
  // The gradients that they make at `vectors`. Waits for the stream.
  VectorGradients read(std::span<const std::vector<float>> vectors, cudaStream_t stream) const;

 private:
  const Network& network_;
  VectorSumLayout layout_;
  DeviceArray<double> sums_;
};

class CudaGradientPass {
 public:
  // Room for `sequences` windows of `positions` at a time. `weights`, exact and nothing of them fused, must outlive the
  // object. options.has_backward is true.
  CudaGradientPass(const CudaNetworkWeights<float>& weights, const PassOptions& options, int64_t context,
                   int64_t sequences, int64_t positions);
  CudaGradientPass(const CudaGradientPass&) = delete;
  CudaGradientPass& operator=(const CudaGradientPass&) = delete;

  // The first batch.positions tokens of windows that begin every `stride` tokens. What the windows give stays until the
  // next forward().
  void forward(std::span<const Token> tokens, int64_t stride, const BatchShape& batch);
  ConstCudaView head_input() const { return view(plan_.hidden); }  // (rows, D)
  // Softcapped logits (rows, V), for example a teacher's, into device memory.
  void logits(CudaView out) const;

  // After forward(), once: that overwrites some of it. `vectors` may be null, else gradients are added to it. Returns
  // without waiting.
  void backward(const CudaTargets& targets, CudaGradientObserver& observer, CudaVectorSums* vectors);
  // The loss after forward(), in nats, summed over its rows, without a backward pass. Waits.
  double forward_loss(const CudaTargets& targets);
  // The loss of the last backward(), in nats, summed over its rows. Waits for it.
  double loss() const;

  CudaColumnDots& column_dots() { return dots_; }  // its memory may serve the observer too
  cudaStream_t stream() const { return stream_; }
  const CudaNetworkWeights<float>& weights() const { return weights_; }

 private:
  friend class CudaTranspose;

  void run(const Instruction& instruction);
  CudaView view(const Place& place) const;
  CudaView logits_view() const { return {logits_.data(), batch_.rows(), network_.vocabulary()}; }
  CudaView logit_gradients() const { return {dlogits_.data(), batch_.rows(), network_.vocabulary()}; }

  const CudaNetworkWeights<float>& weights_;
  const Network& network_;
  PassPlan plan_;
  int64_t context_;
  CudaStream stream_;
  std::vector<DeviceArray<float2>> rotaries_;
  std::vector<DeviceArray<float>> slots_;
  CudaNodeRunner<float> runner_;
  CudaFloatAttention attention_;
  CudaFloatMatrix attention_sums_[3];  // gradients that are added to others; no family needs them
  CudaColumnDots dots_;
  DeviceArray<float> logits_, dlogits_, losses_, scratch_[2], ones_;
  DeviceArray<Token> device_tokens_;
  DeviceArray<int> zero_;
  // Of the batch that runs.
  BatchShape batch_;
  TokenBatch tokens_;  // in host memory
};

}  // namespace thimble
