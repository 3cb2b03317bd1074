// cuda_gradients.cuh: forward and backward pass over a batch of windows on one CUDA device, in float32 whatever the
// numerics: what WindowGradients (window_gradients.h) does on the CPU, window by window, with the same order of
// operations. A window's gradients are the same bits whatever other windows share the batch.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "runtime/cpu/forward.h"
#include "runtime/cuda/cuda_float_model.cuh"
#include "runtime/cuda/cuda_float_ops.cuh"
#include "runtime/cuda/kernels/cuda_column_dots.cuh"
#include "runtime/cuda/kernels/cuda_float_attention.cuh"
#include "runtime/cuda/kernels/cuda_loss.cuh"
#include "runtime/cuda/kernels/cuda_small_gradients.cuh"

namespace thimble {

// GradientObserver for matrices in device memory, one row per position of the batch's windows, window after window.
// Work that is enqueued on `stream` during the call may read them.
class CudaGradientObserver {
 public:
  virtual ~CudaGradientObserver() = default;
  // `output`: what the matrix gave, y = W x, before anything else was done to it. So the gradient of the scale s_r of a
  // row W_r = s_r C_r is sum_p gradient[p][r] * output[p][r] / s_r.
  virtual void on_output_gradient(const std::string& weight, ConstCudaView gradient, ConstCudaView output,
                                  const BatchShape& batch, cudaStream_t stream) = 0;
  // `rows` lie in host memory.
  virtual void on_lookup_gradient(const std::string& table, std::span<const int32_t> rows, ConstCudaView gradient,
                                  const BatchShape& batch, cudaStream_t stream) = 0;
};

class CudaGradients {
 public:
  // `context_length` is T of the rotary base; no window may be longer. `model` must outlive the object. Memory is taken
  // as batches need it; plan_gradients() in memory_plan.h counts it.
  CudaGradients(const CudaFloatModel& model, int64_t context_length);

  // The first batch.positions tokens of windows that begin every `stride` tokens. What the windows give stays until the
  // next forward().
  void forward(std::span<const uint16_t> tokens, int64_t stride, const BatchShape& batch);
  ConstCudaView head_input() const { return head_input_; }  // (rows, D): the final norm's output
  // Softcapped logits (rows, V), for example a teacher's, into device memory.
  void logits(CudaView out) const;

  // After forward(), once: that overwrites some of it. `small` may be null, else gradients are added to it. Returns
  // without waiting.
  void backward(const CudaTargets& targets, CudaGradientObserver& observer, CudaSmallGradients* small);
  // The loss after forward(), in nats, summed over its rows, without a backward pass. Waits.
  double forward_loss(const CudaTargets& targets);
  // The loss of the last backward(), in nats, summed over its rows. Waits for it.
  double loss() const;

  CudaColumnDots& column_dots() { return dots_; }  // its memory may serve the observer too
  cudaStream_t stream() const { return stream_; }

 private:
  struct Kept {  // LayerActivations, but values before the value embedding joins, and no attention outputs
    CudaFloatMatrix input, query, key, value, attention_branch, hidden, mlp_branch;
  };

  void resize_for(const BatchShape& batch);
  void embed(std::span<const uint16_t> tokens, int64_t stride);
  void upload(const std::vector<int32_t>& host, DeviceArray<int32_t>& device);
  void attend(int64_t layer);
  void join_value(int64_t layer);
  void feed_forward(int64_t layer);

  void head_backward(const CudaTargets& targets, CudaGradientObserver& observer);
  void rebuild_branch_inputs(int64_t layer);
  void layer_output(int64_t layer, CudaFloatMatrix& out);
  void feed_forward_backward(int64_t layer, CudaGradientObserver& observer, CudaSmallGradients* small);
  void attend_backward(int64_t layer, CudaGradientObserver& observer, CudaSmallGradients* small);
  void split_heads(int64_t layer, CudaSmallGradients* small);
  void leave_skip(int64_t layer, CudaSmallGradients* small);
  void embed_backward(CudaGradientObserver& observer, CudaSmallGradients* small);
  void look_up_backward(CudaGradientObserver& observer, CudaSmallGradients* small);
  void add_dots(const CudaFloatMatrix& a, const CudaFloatMatrix& b, double* sums);

  const CudaFloatLayer& weights(int64_t layer) const { return model_.layers[static_cast<size_t>(layer)]; }
  Kept& kept(int64_t layer) { return kept_[static_cast<size_t>(layer)]; }
  float depth_scale(int64_t layer) const;
  AttentionShape attention_shape(int64_t layer) const;
  HeadRotation rotation() const;
  float softcap() const { return static_cast<float>(model_.config.logit_softcap); }

  const CudaFloatModel& model_;
  int64_t context_length_;
  CudaStream stream_;
  CudaFloatOps ops_;
  CudaFloatAttention attention_;
  CudaColumnDots dots_;
  DeviceArray<float2> angles_;
  BatchShape batch_;
  std::vector<int32_t> tokens_, buckets_;  // of the batch's rows
  DeviceArray<int32_t> device_tokens_, device_buckets_;
  // The tape.
  CudaFloatMatrix embedded_, bigram_branch_, x0_, value_embedding_, output_, head_input_, logits_;
  std::vector<Kept> kept_;
  // Of the layer at hand, either way: the stream, u after the residual mix, u with the attention branch added, queries,
  // keys and values as attention takes them, what else has a row's width.
  CudaFloatMatrix x_, mixed_, joined_, query_, key_, value_, normed_, branch_, wide_, gathered_;
  std::vector<CudaFloatMatrix> skips_;  // outputs of encoder layers, and later the gradients of these
  // Gradients.
  CudaFloatMatrix dx_, dx0_, dquery_, dkey_, dvalue_, dvalue_embedding_, dlogits_, losses_;
};

}  // namespace thimble
