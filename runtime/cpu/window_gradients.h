// window_gradients.h: forward and backward pass over one window: the inputs of all linear layers, the gradients at
// their outputs, and the loss.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/cpu/backward.h"
#include "runtime/cpu/forward.h"

namespace thimble {

// What looks on while a window runs; null: nobody.
struct WindowObservers {
  LinearObserver* inputs = nullptr;      // of the linear layers below the head
  LinearObserver* head_input = nullptr;  // of the output head
};

// Runs windows of at most the context length, one after another, reusing its buffers: the activation tape of one window
// (activation_tape.h), its logits and their gradient.
class WindowGradients {
 public:
  // `model` and `backend` must outlive the object.
  WindowGradients(const Model& model, Backend& backend, int64_t context_length);
  WindowGradients(const WindowGradients&) = delete;  // backward_ refers to forward_
  WindowGradients& operator=(const WindowGradients&) = delete;

  // `tokens`: at least two; each but the last is an input, each but the first a target. Returns the summed loss in
  // nats.
  double run(std::span<const uint16_t> tokens, const WindowObservers& observers, GradientObserver& gradients,
             SmallGradients* small = nullptr);
  // `inputs`: at least one token; `teacher`: softcapped logits after each. Returns the summed divergence in nats.
  double run_divergence(std::span<const uint16_t> inputs, ConstMatrixView teacher, GradientObserver& gradients,
                        SmallGradients* small = nullptr);
  // The forward pass alone: softcapped logits (inputs, V), valid and free to overwrite until the next call.
  MatrixView logits(std::span<const uint16_t> inputs);

 private:
  void forward(std::span<const uint16_t> inputs, const WindowObservers& observers, ActivationTape* tape);

  ForwardPass forward_;
  BackwardPass backward_;
  KeyValueCache cache_;
  ActivationTape tape_;
  Matrix logits_;
};

}  // namespace thimble
