// model_scorer.h: TokenScorer on a real model.
#pragma once

#include "eval/score/token_scorer.h"
#include "runtime/device/language_model.h"

namespace thimble {

class ModelScorer final : public TokenScorer {
 public:
  // `model` must outlive the scorer. Its context is T, also of shorter last windows.
  explicit ModelScorer(LanguageModel& model) : model_(model) {}

  int64_t vocab_size() const override { return model_.vocab_size(); }
  int64_t context() const override { return model_.context(); }
  int64_t preferred_windows() const override { return model_.preferred_windows(); }
  void score(std::span<const uint16_t> tokens, std::span<const Window> windows, std::span<float> nll_out) override;
  void log_probabilities(std::span<const uint16_t> tokens, const Window& window, int64_t target_begin,
                         MatrixView out) override;

 private:
  LanguageModel& model_;
};

}  // namespace thimble
