// window_gradients.cpp: one window through ForwardPass and back through BackwardPass.
#include "runtime/cpu/window_gradients.h"

#include <algorithm>
#include <cassert>

namespace thimble {

WindowGradients::WindowGradients(const Model& model, Backend& backend, int64_t context_length)
    : forward_(model, backend, context_length),
      backward_(model, backend, forward_.rotary()),
      cache_(backend, forward_.cache_shape(), 1, context_length, /*shared_layers=*/true) {}

// Leaves softcapped logits in logits_.
void WindowGradients::forward(std::span<const uint16_t> inputs, const WindowObservers& observers,
                              ActivationTape* tape) {
  std::ranges::fill(cache_.smear_state().values(), 0.0f);
  ConstMatrixView hidden = forward_.hidden_states(window_batch(inputs), cache_, 0, observers.inputs, tape);
  logits_.resize(hidden.rows, forward_.model().config.vocab_size);
  forward_.logits(hidden, logits_, observers.head_input, tape);
}

double WindowGradients::run(std::span<const uint16_t> tokens, const WindowObservers& observers,
                            GradientObserver& gradients, SmallGradients* small) {
  assert(tokens.size() >= 2);
  forward(tokens.first(tokens.size() - 1), observers, &tape_);
  return backward_.run(tape_, logits_, LossTargets::next_tokens(tokens.subspan(1)), gradients, small);
}

double WindowGradients::run_divergence(std::span<const uint16_t> inputs, ConstMatrixView teacher,
                                       GradientObserver& gradients, SmallGradients* small) {
  forward(inputs, {}, &tape_);
  return backward_.run(tape_, logits_, LossTargets::teacher(teacher), gradients, small);
}

MatrixView WindowGradients::logits(std::span<const uint16_t> inputs) {
  forward(inputs, {}, nullptr);
  return logits_;
}

}  // namespace thimble
