// generator.cpp: see generator.h.
#include "runtime/ops/generator.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/error.h"
#include "runtime/base/random.h"

namespace thimble {

Token sample_token(std::span<const float> logits, double temperature, double uniform) {
  auto peak = std::ranges::max_element(logits);
  if (!std::isfinite(*peak) || std::ranges::any_of(logits, [](float logit) { return std::isnan(logit); }))
    throw Error(ExitCode::kBadInput, "the model's logits are not finite; its weights are damaged");
  if (temperature == 0) return static_cast<Token>(peak - logits.begin());
  thread_local std::vector<double> cumulative;
  cumulative.clear();
  double sum = 0;
  for (float logit : logits) {
    sum += std::exp((static_cast<double>(logit) - *peak) / temperature);
    cumulative.push_back(sum);
  }
  auto chosen = std::ranges::upper_bound(cumulative, uniform * sum);
  if (chosen == cumulative.end()) --chosen;  // uniform * sum may round up to sum
  return static_cast<Token>(chosen - cumulative.begin());
}

Token first_calibration_token(int64_t vocabulary, const CalibrationOptions& options, int64_t sequence) {
  const double uniform = uniform_at(options.seed, static_cast<uint64_t>(sequence), 0);
  return static_cast<Token>(uniform * static_cast<double>(vocabulary));
}

}  // namespace thimble
