// model_scorer.h: TokenScorer on a real model: one window after another through the forward pass.
#pragma once

#include "eval/token_scorer.h"
#include "runtime/window_scores.h"

namespace thimble {

class ModelScorer final : public TokenScorer {
 public:
  // `model` and `backend` must outlive the scorer. `context` is T, also of shorter last windows.
  ModelScorer(const Model& model, Backend& backend, int64_t context) : scorer_(model, backend, context) {}

  int64_t vocab_size() const override { return scorer_.model().config.vocab_size; }
  int64_t context() const override { return scorer_.context_length(); }
  void score(std::span<const uint16_t> tokens, std::span<const Window> windows, std::span<float> nll_out) override;
  void log_probabilities(std::span<const uint16_t> tokens, const Window& window, int64_t target_begin,
                         MatrixView out) override;

 private:
  // Rows for the targets [target_begin, window.target_end).
  ConstMatrixView rows_from(std::span<const uint16_t> tokens, const Window& window, int64_t target_begin);

  WindowScorer scorer_;
};

}  // namespace thimble
