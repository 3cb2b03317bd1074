// cuda_gradient_pass.cuh: forward and backward pass over a batch of whole windows on one CUDA device: the instructions
// of a PassPlan, as CpuPass runs them window by window. T is what weights, values and gradients are stored as: float,
// with products in float32, or __nv_bfloat16, with products on tensor cores; logits and all sums are float32 or more. A
// window's gradients are the same bits whatever other windows share the batch.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "runtime/cuda/cuda_gradient_rows.cuh"
#include "runtime/cuda/cuda_node_runner.cuh"
#include "runtime/cuda/kernels/attention/cuda_bf16_attention.cuh"
#include "runtime/cuda/kernels/cuda_column_dots.cuh"
#include "runtime/cuda/kernels/cuda_loss.cuh"
#include "runtime/ops/token_batch.h"
#include "runtime/ops/vector_sums.h"

namespace thimble {

// GradientObserver for matrices in device memory, one row per position of the batch's windows, window after window.
// Work that is enqueued on `stream` during the call may read them.
template <typename T>
class CudaGradientObserver {
 public:
  using ConstView = BasicCudaView<const T>;

  virtual ~CudaGradientObserver() = default;
  // `output`: what the matrix gave, y = W x, before anything else was done to it; empty unless the pass keeps outputs.
  // So the gradient by the logarithm of a gain of row r is sum_p gradient[p][r] * output[p][r].
  virtual void on_output_gradient(const std::string& weight, ConstView gradient, ConstView output,
                                  const BatchShape& batch, cudaStream_t stream) = 0;
  // The output head's, in pieces (logit_pieces.h), in order, whose positions `batch` tells; outputs before the softcap.
  virtual void on_head_gradient(const std::string& weight, ConstView gradient, ConstCudaView output,
                                const BatchShape& batch, cudaStream_t stream) = 0;
  // `rows` lie in host memory.
  virtual void on_lookup_gradient(const std::string& table, std::span<const int32_t> rows, ConstView gradient,
                                  const BatchShape& batch, cudaStream_t stream) = 0;
  // Only where the pass reads inputs of products (PassOptions): after on_output_gradient() or on_head_gradient(), with
  // the same `gradient` (rows, N), and `input` (rows, K), which matrix `weight` (N, K) multiplied.
  virtual void on_linear_gradient(const std::string& /*weight*/, ConstView /*gradient*/, ConstView /*input*/,
                                  const BatchShape& /*batch*/, cudaStream_t /*stream*/) {}
};

// Calls body(static_cast<T*>(nullptr)) for what gradient passes in this mode store.
template <typename Body>
auto with_gradient_type(Numerics numerics, const Body& body) {
  if (gradient_arithmetic(numerics) == ProductArithmetic::kBf16) return body(static_cast<__nv_bfloat16*>(nullptr));
  return body(static_cast<float*>(nullptr));
}

// What the model should have predicted at rows [first_row, first_row + rows) of the batch that runs, in device memory
// until the next call. What making it takes is enqueued on `stream`.
using CudaTargetRows = std::function<CudaTargets(int64_t first_row, int64_t rows, cudaStream_t stream)>;

// `tokens`: of all rows, in device memory.
inline CudaTargetRows next_token_targets(const int32_t* tokens) {
  return [tokens](int64_t first_row, int64_t, cudaStream_t) { return CudaTargets::next_tokens(tokens + first_row); };
}

// Softcapped logits (rows, V) of the head's input (rows, D).
template <typename T>
void launch_logits(BasicCudaView<const T> hidden, const CudaMatrix<T>& head, float softcap, CudaView out,
                   cudaStream_t stream);

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

// A step around such a pass: as many sequences at a time as fit, and what their pass keeps.
struct CudaPassPlan {
  MemoryPlan memory;
  Keeps keeps;
};
// Of up to `most` sequences of `length` tokens at a time: the pass keeps all, where they all fit then, else what is
// costly. `allocate` takes what the step takes.
CudaPassPlan plan_gradient_pass(const std::string& step, int64_t length, int64_t most, uint64_t usable_bytes,
                                const std::function<void(int64_t batch, Keeps keeps)>& allocate);

template <typename T>
class CudaTranspose;

template <typename T>
class CudaGradientPass {
 public:
  using View = BasicCudaView<T>;
  using ConstView = BasicCudaView<const T>;

  // Room for `sequences` windows of `positions` at a time. `weights`, exact and nothing of them fused, must outlive the
  // object.
  CudaGradientPass(const CudaNetworkWeights<T>& weights, const PassOptions& options, int64_t context, int64_t sequences,
                   int64_t positions);
  CudaGradientPass(const CudaGradientPass&) = delete;
  CudaGradientPass& operator=(const CudaGradientPass&) = delete;

  // The first batch.positions tokens of windows that begin every `stride` tokens. What the windows give stays until the
  // next forward().
  void forward(std::span<const Token> tokens, int64_t stride, const BatchShape& batch);
  ConstView head_input() const { return view(plan_.hidden); }  // (rows, D)
  // Of a pass that has one, after forward(), once: that overwrites some of it. `vectors` may be null, else gradients
  // are added to it. Returns without waiting.
  void backward(const CudaTargetRows& targets, CudaGradientObserver<T>& observer, CudaVectorSums* vectors);
  // The loss after forward(), in nats, summed over its rows, without a backward pass. Waits.
  double forward_loss(const CudaTargetRows& targets);
  // The loss of the last backward(), in nats, summed over its rows. Waits for it.
  double loss() const;

  // For the observer, too: backward() finishes its sums.
  CudaColumnDots& column_dots() { return dots_; }
  cudaStream_t stream() const { return stream_; }
  const CudaNetworkWeights<T>& weights() const { return weights_; }

 private:
  friend class CudaTranspose<T>;
  using Attention = std::conditional_t<std::is_same_v<T, float>, CudaFloatAttention, CudaBf16Attention>;

  // Runs the first of these instructions, and the next too where one kernel does both. Returns how many that were.
  size_t run(std::span<const Instruction> rest);
  size_t transpose(std::span<const Instruction> rest, CudaGradientObserver<T>& observer, CudaVectorSums* vectors);
  void run(const Instruction& instruction);
  // A product, and the activation of what it gives. False: nothing was run, since they are not, or no kernel does both.
  bool run_activated(const Instruction& product, const Instruction& next);
  void attend(const Instruction& instruction, const op::Attention& shape);
  View view(const Place& place) const;
  ConstView view(MatrixId id) const;
  // body(first row, piece) for each piece of the batch's logits: as many of its windows as fit, or so many positions of
  // one, so that a window is cut alike in any batch.
  template <typename Body>
  void for_each_piece(const Body& body) const;
  // What the head gives at these rows, before the softcap.
  CudaView make_logits(int64_t first_row, int64_t rows);
  // Where their gradient goes.
  View logit_gradient(CudaView logits);
  // Losses, their gradients, and through the head to that of its input.
  void backward_head(const CudaTargetRows& targets, CudaGradientObserver<T>& observer);

  const CudaNetworkWeights<T>& weights_;
  const Network& network_;
  PassOptions options_;
  PassPlan plan_;
  int64_t context_;
  CudaStream stream_;
  std::vector<DeviceArray<float2>> rotaries_;
  std::vector<DeviceArray<T>> slots_;
  CudaNodeRunner<T> runner_;
  Attention attention_;
  std::map<size_t, CudaAttentionSums> attention_of_;  // by node, where attention leaves any
  BasicCudaMatrix<T> attention_sums_[3];              // gradients that are added to others; no family needs them
  CudaColumnDots dots_;
  DeviceArray<float> logits_;  // of a piece
  DeviceArray<T> dlogits_;     // empty where they take the logits' place: of float, where no observer sees outputs
  DeviceArray<float> losses_;
  DeviceArray<T> scratch_, ones_;
  DeviceArray<Token> device_tokens_;
  DeviceArray<int> zero_;
  // Of the batch that runs.
  BatchShape batch_;
  TokenBatch tokens_;  // in host memory
};

}  // namespace thimble
