// distortion.cpp: float64 sums in a fixed order.
#include "eval/score/distortion.h"

#include <cassert>
#include <cmath>
#include <string>
#include <vector>

#include "eval/score/worst_of.h"
#include "runtime/base/error.h"

namespace thimble {
namespace {

// Terms with p = 0 are 0. NaN (either side not a distribution) stays NaN.
double kl_nats(std::span<const float> log_p, std::span<const float> log_q) {
  double kl = 0;
  for (size_t v = 0; v < log_p.size(); ++v) {
    double p = std::exp(double{log_p[v]});
    if (p != 0) kl += p * (double{log_p[v]} - double{log_q[v]});
  }
  return kl;
}

std::span<const float> row_of(const Matrix& matrix, int64_t row) {
  return {matrix.row(row), static_cast<size_t>(matrix.cols())};
}

}  // namespace

WeightError weight_error(std::span<const float> original, std::span<const float> compressed) {
  assert(original.size() == compressed.size());
  double error_energy = 0, energy = 0;
  WeightError result;
  for (size_t i = 0; i < original.size(); ++i) {
    double error = double{compressed[i]} - double{original[i]};
    error_energy += error * error;
    energy += double{original[i]} * double{original[i]};
    result.max_absolute_error = worst_of(result.max_absolute_error, std::abs(error));
  }
  if (error_energy != 0) result.relative_error = std::sqrt(error_energy / energy);
  return result;
}

PredictionError prediction_error(Scorer& original, Scorer& compressed, std::span<const Token> tokens,
                                 std::span<const Window> windows, int64_t spacing) {
  const int64_t vocab_size = original.vocabulary();
  if (compressed.vocabulary() != vocab_size)
    throw UsageError("vocabularies of " + std::to_string(vocab_size) + " and " +
                     std::to_string(compressed.vocabulary()) + " cannot be compared");
  if (spacing < 1) throw UsageError("spacing " + std::to_string(spacing) + ", must be at least 1");
  Matrix log_p, log_q;
  PredictionError result;
  double sum = 0;
  int64_t scored = 0;
  for (const Window& window : windows) {
    // The same rows as score() computes, so that the very numbers that are scored are compared.
    const int64_t targets = window.target_count(), first = (spacing - scored % spacing) % spacing;
    scored += targets;
    if (first >= targets) continue;
    const std::span<const Token> inputs = score_window(tokens, window).inputs;
    log_p.resize(targets, vocab_size);
    log_q.resize(targets, vocab_size);
    original.log_probabilities(inputs, log_p);
    compressed.log_probabilities(inputs, log_q);
    for (int64_t target = first; target < targets; target += spacing) {
      const double kl = kl_nats(row_of(log_p, target), row_of(log_q, target));
      sum += kl;
      result.max_kl_nats = worst_of(result.max_kl_nats, kl);
      ++result.targets;
    }
  }
  if (result.targets == 0) throw UsageError("no targets to compare predictions at");
  result.mean_kl_nats = sum / static_cast<double>(result.targets);
  return result;
}

}  // namespace thimble
