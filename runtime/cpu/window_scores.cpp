// window_scores.cpp: one window at a time through CausalForward.
#include "runtime/cpu/window_scores.h"

#include <algorithm>

namespace thimble {

WindowScorer::WindowScorer(std::unique_ptr<CausalForward> forward)
    : forward_(std::move(forward)),
      cache_(forward_->backend(), forward_->cache_shape(), 1, forward_->context_length(), /*shared_layers=*/true) {}

WindowScorer::WindowScorer(const Model& model, Backend& backend, int64_t context_length)
    : WindowScorer(std::make_unique<ForwardPass>(model, backend, context_length)) {}

ConstMatrixView WindowScorer::logits(std::span<const uint16_t> inputs, int64_t first) {
  std::ranges::fill(cache_.smear_state().values(), 0.0f);
  ConstMatrixView hidden = forward_->hidden_states(window_batch(inputs), cache_, first);
  logits_.resize(forward_->backend(), hidden.rows, forward_->vocab_size());
  forward_->logits(hidden, logits_);
  forward_->backend().finish();
  return logits_;
}

ConstMatrixView WindowScorer::log_probabilities(std::span<const uint16_t> inputs, int64_t first) {
  logits(inputs, first);
  forward_->backend().log_softmax(logits_);
  forward_->backend().finish();
  return logits_;
}

void WindowScorer::observe(std::span<const uint16_t> inputs, LinearObserver& observer) {
  std::ranges::fill(cache_.smear_state().values(), 0.0f);
  forward_->hidden_states(window_batch(inputs), cache_, 0, &observer);
}

}  // namespace thimble
