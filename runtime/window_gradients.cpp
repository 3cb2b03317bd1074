// window_gradients.cpp: one window through ForwardPass and back through BackwardPass.
#include "runtime/window_gradients.h"

#include <algorithm>
#include <cassert>

namespace thimble {

WindowGradients::WindowGradients(const Model& model, Backend& backend, int64_t context_length)
    : forward_(model, backend, context_length),
      backward_(model, backend, forward_.rotary()),
      cache_(model.config, 1, context_length, /*shared_layers=*/true) {}

double WindowGradients::run(std::span<const uint16_t> tokens, const WindowObservers& observers,
                            GradientObserver& gradients, SmallGradients* small) {
  assert(tokens.size() >= 2);
  std::ranges::fill(cache_.smear_state().values(), 0.0f);
  TokenBatch batch = window_batch(tokens.first(tokens.size() - 1));
  ConstMatrixView hidden = forward_.hidden_states(batch, cache_, 0, observers.inputs, &tape_);
  logits_.resize(hidden.rows, forward_.model().config.vocab_size);
  forward_.logits(hidden, logits_, observers.head_input);
  return backward_.run(tape_, logits_, tokens.subspan(1), gradients, small);
}

}  // namespace thimble
