// cuda_gradient_pass.cuh: forward and backward pass over a batch of whole windows on one CUDA device, in float32 but
// for products, whose arithmetic is chosen: the instructions of a PassPlan, as CpuPass runs them window by window. A
// window's gradients are the same bits whatever other windows share the batch.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/cuda/cuda_gradient_rows.cuh"
#include "runtime/cuda/cuda_node_runner.cuh"
#include "runtime/cuda/kernels/attention/cuda_float_attention.cuh"
#include "runtime/cuda/kernels/cuda_column_dots.cuh"
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
  // So the gradient by the logarithm of a gain of row r is sum_p gradient[p][r] * output[p][r]. The output head's come
  // in pieces (logit_pieces.h), in order, whose positions `batch` tells.
  virtual void on_output_gradient(const std::string& weight, ConstCudaView gradient, ConstCudaView output,
                                  const BatchShape& batch, cudaStream_t stream) = 0;
  // `rows` lie in host memory.
  virtual void on_lookup_gradient(const std::string& table, std::span<const int32_t> rows, ConstCudaView gradient,
                                  const BatchShape& batch, cudaStream_t stream) = 0;
  // Only where the pass reads inputs of products (PassOptions): after on_output_gradient(), with the same `gradient`
  // (rows, N), and `input` (rows, K), which matrix `weight` (N, K) multiplied.
  virtual void on_linear_gradient(const std::string& /*weight*/, ConstCudaView /*gradient*/, ConstCudaView /*input*/,
                                  const BatchShape& /*batch*/, cudaStream_t /*stream*/) {}
};

// What the model should have predicted at rows [first_row, first_row + rows) of the batch that runs, in device memory
// until the next call. What making it takes is enqueued on `stream`.
using CudaTargetRows = std::function<CudaTargets(int64_t first_row, int64_t rows, cudaStream_t stream)>;

// `tokens`: of all rows, in device memory.
inline CudaTargetRows next_token_targets(const int32_t* tokens) {
  return [tokens](int64_t first_row, int64_t, cudaStream_t) { return CudaTargets::next_tokens(tokens + first_row); };
}

// Softcapped logits (rows, V) of the head's input (rows, D).
void launch_logits(ConstCudaView hidden, const CudaMatrix<float>& head, float softcap, CudaGradientProducts& products,
                   CudaView out, cudaStream_t stream);

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
                   int64_t sequences, int64_t positions, ProductArithmetic arithmetic = ProductArithmetic::kFloat32);
  CudaGradientPass(const CudaGradientPass&) = delete;
  CudaGradientPass& operator=(const CudaGradientPass&) = delete;

  // The first batch.positions tokens of windows that begin every `stride` tokens. What the windows give stays until the
  // next forward().
  void forward(std::span<const Token> tokens, int64_t stride, const BatchShape& batch);
  ConstCudaView head_input() const { return view(plan_.hidden); }  // (rows, D)
  // After forward(), once: that overwrites some of it. `vectors` may be null, else gradients are added to it. Returns
  // without waiting.
  void backward(const CudaTargetRows& targets, CudaGradientObserver& observer, CudaVectorSums* vectors);
  // The loss after forward(), in nats, summed over its rows, without a backward pass. Waits.
  double forward_loss(const CudaTargetRows& targets);
  // The loss of the last backward(), in nats, summed over its rows. Waits for it.
  double loss() const;

  // Their memory may serve the observer too; products of what it is shown find factors rounded.
  CudaColumnDots& column_dots() { return dots_; }
  CudaGradientProducts& products() { return products_; }
  cudaStream_t stream() const { return stream_; }
  const CudaNetworkWeights<float>& weights() const { return weights_; }

 private:
  friend class CudaTranspose;

  void reserve_products(int64_t rows);  // of a batch
  void run(const Instruction& instruction);
  CudaView view(const Place& place) const;
  // Before an instruction writes there: rounded factors that lie in its slot are no longer what they were.
  void overwrite(const Place& place);
  // Before instruction `at` of a list: what the next product after it has on its left may be rounded as it is written.
  void expect_product(std::span<const Instruction> instructions, size_t at);
  // body(first row, piece) for each piece of the batch's logits: as many of its windows as fit, or so many positions of
  // one, so that a window is cut alike in any batch.
  template <typename Body>
  void for_each_piece(const Body& body) const;
  // What the head gives at these rows, before the softcap.
  CudaView make_logits(int64_t first_row, int64_t rows);
  // Losses, their gradients, and through the head to that of its input.
  void backward_head(const CudaTargetRows& targets, CudaGradientObserver& observer);

  const CudaNetworkWeights<float>& weights_;
  const Network& network_;
  PassOptions options_;
  PassPlan plan_;
  CudaGradientProducts products_;
  int64_t context_;
  CudaStream stream_;
  std::vector<DeviceArray<float2>> rotaries_;
  std::vector<DeviceArray<float>> slots_;
  ConstCudaView next_left_;  // what expect_product() found
  const RoundsRows rounds_;  // of who writes just that
  CudaNodeRunner<float> runner_;
  CudaFloatAttention attention_;
  std::map<size_t, CudaAttentionSums> attention_of_;  // by node
  CudaFloatMatrix attention_sums_[3];                 // gradients that are added to others; no family needs them
  CudaColumnDots dots_;
  DeviceArray<float> logits_, dlogits_;  // of a piece; the second where observers see outputs, else they take one place
  DeviceArray<float> losses_, scratch_[2], ones_;
  DeviceArray<Token> device_tokens_;
  DeviceArray<int> zero_;
  // Of the batch that runs.
  BatchShape batch_;
  TokenBatch tokens_;  // in host memory
};

}  // namespace thimble
