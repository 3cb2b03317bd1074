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

PredictionError prediction_error(TokenScorer& original, TokenScorer& compressed, std::span<const uint16_t> tokens,
                                 std::span<const Window> windows, int64_t spacing) {
  const int64_t vocab_size = original.vocab_size();
  if (compressed.vocab_size() != vocab_size)
    throw UsageError("vocabularies of " + std::to_string(vocab_size) + " and " +
                     std::to_string(compressed.vocab_size()) + " cannot be compared");
  if (spacing < 1) throw UsageError("spacing " + std::to_string(spacing) + ", must be at least 1");
  std::vector<float> log_p(vocab_size), log_q(vocab_size);
  PredictionError result;
  double sum = 0;
  int64_t scored = 0;
  for (const Window& window : windows) {
    for (int64_t target = window.target_begin; target < window.target_end; ++target) {
      if (scored++ % spacing != 0) continue;
      original.log_probabilities(tokens, window, target, MatrixView(log_p.data(), 1, vocab_size));
      compressed.log_probabilities(tokens, window, target, MatrixView(log_q.data(), 1, vocab_size));
      double kl = kl_nats(log_p, log_q);
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
