// cpu_gradients.h: forward and backward pass over one window on the CPU in float32: the inputs of linear layers, the
// gradients at their outputs, the loss. The reference for every device.
#pragma once

#include <span>

#include "runtime/cpu/cpu_pass.h"
#include "runtime/ops/token_sequences.h"

namespace thimble {

// What looks on while a window runs; null: nobody.
struct WindowObservers {
  LinearObserver* inputs = nullptr;      // of the linear layers below the head
  LinearObserver* head_input = nullptr;  // of the output head
};

// Runs windows of at most the context length, one after another, reusing its buffers.
class CpuGradients {
 public:
  // `weights` must outlive the object and may change between windows. `for_gains`: observers also see the outputs of
  // matrices, and gradients by vectors may be asked for.
  CpuGradients(const Weights& weights, int64_t context_length, bool for_gains = false);

  // `tokens`: at least two; each but the last is an input, each but the first a target. Returns the summed loss in
  // nats.
  double run(std::span<const Token> tokens, const WindowObservers& observers, GradientObserver& gradients,
             VectorGradients* vectors = nullptr);
  // `inputs`: at least one token; `teacher`: softcapped logits after each. Returns the summed divergence in nats.
  double run_divergence(std::span<const Token> inputs, ConstMatrixView teacher, GradientObserver& gradients,
                        VectorGradients* vectors = nullptr);
  // The forward pass alone: softcapped logits (inputs, V), valid and free to overwrite until the next call.
  MatrixView logits(std::span<const Token> inputs);

 private:
  void forward(std::span<const Token> inputs, const WindowObservers& observers);
  void backward(GradientObserver& gradients, VectorGradients* vectors);

  CpuPass pass_;
  bool for_gains_;
  Matrix logits_, head_output_;  // the latter before the softcap, where observers see outputs
};

}  // namespace thimble
