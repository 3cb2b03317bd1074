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
  if (chosen == cumulative.end()) return static_cast<Token>(peak - logits.begin());  // uniform * sum rounded up to sum
  return static_cast<Token>(chosen - cumulative.begin());
}

TextScript uniform_script(int64_t vocabulary, const CalibrationOptions& options) {
  TextScript script{options, {}, {}};
  script.given.assign(static_cast<size_t>(options.sequences * options.length), TextScript::kDrawn);
  for (int64_t s = 0; s < options.sequences; ++s) {
    const double uniform = uniform_at(options.seed, static_cast<uint64_t>(s), 0);
    script.given[static_cast<size_t>(s * options.length)] =
        static_cast<Token>(uniform * static_cast<double>(vocabulary));
  }
  return script;
}

}  // namespace thimble
