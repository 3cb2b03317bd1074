// window_scores.h: scores of the tokens of one window: negative log-likelihoods, or whole log-probability rows.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "runtime/cpu/forward.h"

namespace thimble {

// Runs windows of at most the context length, one after another, reusing its buffers.
class WindowScorer {
 public:
  explicit WindowScorer(std::unique_ptr<CausalForward> forward);
  WindowScorer(const Model& model, Backend& backend, int64_t context_length);

  // `inputs` are the window's tokens. Log-probabilities (inputs.size() - first, V) of the token after each input from
  // index `first` on, valid until the next call.
  ConstMatrixView log_probabilities(std::span<const uint16_t> inputs, int64_t first);
  // The same before log softmax.
  ConstMatrixView logits(std::span<const uint16_t> inputs, int64_t first);
  // Hands every linear layer's input for `inputs` to the observer; computes no logits.
  void observe(std::span<const uint16_t> inputs, LinearObserver& observer);

  CausalForward& forward() { return *forward_; }
  const CausalForward& forward() const { return *forward_; }

 private:
  std::unique_ptr<CausalForward> forward_;
  KeyValueCache cache_;
  BackendMatrix logits_;
};

}  // namespace thimble
