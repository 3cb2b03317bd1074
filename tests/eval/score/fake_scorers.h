// fake_scorers.h: scorers whose every number is known, and scorers that cheat in one way each.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "runtime/ops/scorer.h"

namespace thimble::testing {

// What fake scorers answer alike.
class FakeScorer : public Scorer {
 public:
  FakeScorer(int64_t vocabulary, int64_t context, int64_t preferred_windows = 1)
      : vocabulary_(vocabulary), context_(context), preferred_windows_(preferred_windows) {}
  int64_t vocabulary() const override { return vocabulary_; }
  int64_t context() const override { return context_; }
  int64_t preferred_windows() const override { return preferred_windows_; }
  std::optional<NonFinite> find_non_finite_input(std::span<const Token>) override { return std::nullopt; }

 private:
  int64_t vocabulary_, context_, preferred_windows_;
};

// p = 1 / V for every token.
class UniformScorer final : public FakeScorer {
 public:
  using FakeScorer::FakeScorer;
  void score(std::span<const ScoreWindow>, std::span<float> nll) override {
    for (float& value : nll) value = std::log(static_cast<float>(vocabulary()));
  }
  using Scorer::log_probabilities;
  void log_probabilities(std::span<const Token>, int64_t, int64_t, MatrixView out) override {
    for (int64_t r = 0; r < out.rows; ++r)
      for (int64_t v = 0; v < out.cols; ++v) out.row(r)[v] = -std::log(static_cast<float>(vocabulary()));
  }
};

// A proper model: the distribution is a function of all tokens from the window's start up to the predicted one.
// The hooks spoil it.
class ContextScorer final : public FakeScorer {
 public:
  using FakeScorer::FakeScorer;

  void score(std::span<const ScoreWindow> windows, std::span<float> nll) override {
    size_t at = 0;
    for (const ScoreWindow& window : windows) {
      const size_t first = window.inputs.size() - window.targets.size();
      for (size_t i = 0; i < window.targets.size(); ++i, ++at) {
        const std::vector<float> row = distribution(window.inputs, first + i);
        nll[at] = -row[static_cast<size_t>(window.targets[i])];
        if (spoil_score) nll[at] += spoil_score(windows, window, i);
      }
    }
  }

  using Scorer::log_probabilities;
  void log_probabilities(std::span<const Token> inputs, int64_t targets, int64_t first, MatrixView out) override {
    const size_t begin = inputs.size() - static_cast<size_t>(targets - first);
    for (int64_t r = 0; r < out.rows; ++r) {
      const std::vector<float> row = distribution(inputs, begin + static_cast<size_t>(r));
      std::copy(row.begin(), row.end(), out.row(r));
    }
  }

  // Added to the score of target i of a window.
  std::function<float(std::span<const ScoreWindow>, const ScoreWindow&, size_t i)> spoil_score;
  // Added to the logits after inputs[position], before they are normalised (token v).
  std::function<float(std::span<const Token> inputs, size_t position, int64_t v)> spoil_logit;
  // Added to each log-probability after normalising.
  float excess = 0;

 private:
  std::vector<float> distribution(std::span<const Token> inputs, size_t position) const {
    uint64_t hash = 1469598103934665603ULL;
    for (Token token : inputs.first(position + 1)) hash = (hash ^ static_cast<uint64_t>(token)) * 1099511628211ULL;
    std::vector<double> logits(static_cast<size_t>(vocabulary()));
    double sum = 0;
    for (size_t v = 0; v < logits.size(); ++v) {
      uint64_t mixed = (hash ^ (v + 1) * 0x9E3779B97F4A7C15ULL) * 0xBF58476D1CE4E5B9ULL;
      logits[v] = static_cast<double>(mixed >> 40) / double(1 << 24) * 4;
      if (spoil_logit) logits[v] += double{spoil_logit(inputs, position, static_cast<int64_t>(v))};
      sum += std::exp(logits[v]);
    }
    std::vector<float> row(logits.size());
    for (size_t v = 0; v < row.size(); ++v) row[v] = static_cast<float>(logits[v] - std::log(sum)) + excess;
    return row;
  }
};

}  // namespace thimble::testing
