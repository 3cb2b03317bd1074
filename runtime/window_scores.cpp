// window_scores.cpp: one window at a time through ForwardPass.
#include "runtime/window_scores.h"

#include <algorithm>

namespace thimble {

WindowScorer::WindowScorer(const Model& model, Backend& backend, int64_t context_length)
    : backend_(backend),
      forward_(model, backend, context_length),
      cache_(model.config, 1, context_length, /*shared_layers=*/true) {}

ConstMatrixView WindowScorer::logits(std::span<const uint16_t> inputs, int64_t first) {
  std::ranges::fill(cache_.smear_state().values(), 0.0f);
  ConstMatrixView hidden = forward_.hidden_states(window_batch(inputs), cache_, first);
  logits_.resize(hidden.rows, model().config.vocab_size);
  forward_.logits(hidden, logits_);
  return logits_;
}

ConstMatrixView WindowScorer::log_probabilities(std::span<const uint16_t> inputs, int64_t first) {
  logits(inputs, first);
  backend_.log_softmax(logits_);
  return logits_;
}

void WindowScorer::observe(std::span<const uint16_t> inputs, LinearObserver& observer) {
  std::ranges::fill(cache_.smear_state().values(), 0.0f);
  forward_.hidden_states(window_batch(inputs), cache_, 0, &observer);
}

}  // namespace thimble
