// fake_scorers.h: scorers whose every number is known, and scorers that cheat in one way each.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "eval/score/token_scorer.h"

namespace thimble::testing {

// p = 1 / V for every token.
class UniformScorer final : public TokenScorer {
 public:
  UniformScorer(int64_t vocab_size, int64_t context) : vocab_size_(vocab_size), context_(context) {}
  int64_t vocab_size() const override { return vocab_size_; }
  int64_t context() const override { return context_; }
  void score(std::span<const uint16_t>, std::span<const Window>, std::span<float> nll_out) override {
    for (float& nll : nll_out) nll = std::log(static_cast<float>(vocab_size_));
  }
  void log_probabilities(std::span<const uint16_t>, const Window&, int64_t, MatrixView out) override {
    for (int64_t r = 0; r < out.rows; ++r)
      for (int64_t v = 0; v < out.cols; ++v) out.row(r)[v] = -std::log(static_cast<float>(vocab_size_));
  }

 private:
  int64_t vocab_size_, context_;
};

// A proper model: the distribution is a function of all tokens from the window's start up to the predicted one.
// The hooks spoil it.
class ContextScorer : public TokenScorer {
 public:
  ContextScorer(int64_t vocab_size, int64_t context, int64_t preferred_windows = 1)
      : vocab_size_(vocab_size), context_(context), preferred_windows_(preferred_windows) {}

  int64_t vocab_size() const override { return vocab_size_; }
  int64_t context() const override { return context_; }
  int64_t preferred_windows() const override { return preferred_windows_; }

  void score(std::span<const uint16_t> tokens, std::span<const Window> windows, std::span<float> nll_out) override {
    size_t at = 0;
    for (const Window& window : windows) {
      for (int64_t target = window.target_begin; target < window.target_end; ++target, ++at) {
        std::vector<float> row = distribution(tokens, window, target);
        nll_out[at] = -row[tokens[target + 1]];
        if (spoil_score) nll_out[at] += spoil_score(tokens, windows, window, target);
      }
    }
  }

  void log_probabilities(std::span<const uint16_t> tokens, const Window& window, int64_t target_begin,
                         MatrixView out) override {
    for (int64_t r = 0; r < out.rows; ++r) {
      std::vector<float> row = distribution(tokens, window, target_begin + r);
      std::copy(row.begin(), row.end(), out.row(r));
    }
  }

  // Added to a score.
  std::function<float(std::span<const uint16_t>, std::span<const Window>, const Window&, int64_t)> spoil_score;
  // Added to the logits before they are normalised (token v of target t).
  std::function<float(std::span<const uint16_t>, int64_t t, int64_t v)> spoil_logit;
  // Added to each log-probability after normalising.
  float excess = 0;

 private:
  std::vector<float> distribution(std::span<const uint16_t> tokens, const Window& window, int64_t target) const {
    uint64_t hash = 1469598103934665603ULL;
    for (int64_t i = window.first_token; i <= target; ++i) hash = (hash ^ tokens[i]) * 1099511628211ULL;
    std::vector<double> logits(vocab_size_);
    double sum = 0;
    for (int64_t v = 0; v < vocab_size_; ++v) {
      uint64_t mixed = (hash ^ static_cast<uint64_t>(v + 1) * 0x9E3779B97F4A7C15ULL) * 0xBF58476D1CE4E5B9ULL;
      logits[v] = static_cast<double>(mixed >> 40) / double(1 << 24) * 4;
      if (spoil_logit) logits[v] += double{spoil_logit(tokens, target, v)};
      sum += std::exp(logits[v]);
    }
    std::vector<float> row(vocab_size_);
    for (int64_t v = 0; v < vocab_size_; ++v) row[v] = static_cast<float>(logits[v] - std::log(sum)) + excess;
    return row;
  }

  int64_t vocab_size_, context_, preferred_windows_;
};

}  // namespace thimble::testing
