// small_steps.cpp: see small_steps.h.
#include "gptq/slope/small_steps.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

#include "gptq/slope/step_plan.h"
#include "runtime/base/hash.h"
#include "runtime/codes/code_numbers.h"

namespace thimble {
namespace {

constexpr double kDataShare = 0.5;

double mean_square(const std::vector<float>& values) {
  double sum = 0;
  for (float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum / static_cast<double>(std::max<size_t>(1, values.size()));
}

// Of gradients of one sequence each.
class Variances {
 public:
  void add(const NamedGradients& gradients) {
    for (const auto& [name, gradient] : gradients) {
      std::vector<double>& sum = sums_[name];
      sum.resize(gradient.size());
      for (size_t i = 0; i < gradient.size(); ++i) {
        sum[i] += gradient[i];
        squares_[name] += gradient[i] * gradient[i];
      }
    }
  }
  // Over the elements of each tensor, times `scale`.
  std::map<std::string, double> means(int64_t sequences, double scale) const {
    const auto count = static_cast<double>(sequences);
    std::map<std::string, double> means;
    for (const auto& [name, sum] : sums_) {
      if (sum.empty()) continue;
      double of_means = 0;
      for (double value : sum) of_means += value * value / count;
      const double variance = std::max(0.0, squares_.at(name) - of_means) / (count - 1);
      means[name] = variance * scale / static_cast<double>(sum.size());
    }
    return means;
  }

 private:
  NamedGradients sums_;
  std::map<std::string, double> squares_;  // over sequences and elements
};

}  // namespace

DivergenceOptions fisher_pass_options() {
  DivergenceOptions options;
  options.data_share = kDataShare;
  return options;
}

SmallFisher small_fisher(DivergencePass& original, int64_t sequences, int64_t positions) {
  Variances small, gains;
  for (int64_t s = 0; s < sequences; ++s) {
    const GainGradients gradients = original.gradients(s, 1);
    small.add(gradients.small);
    gains.add(gradients.rows);
  }
  const double scale = 1 / (kDataShare * kDataShare * static_cast<double>(positions));
  return {small.means(sequences, scale), gains.means(sequences, scale)};
}

std::vector<float> rounded_to_steps(std::vector<float> values, int exponent) {
  for (float& value : values) {
    const double steps = std::nearbyint(std::ldexp(static_cast<double>(value), -exponent));
    value = static_cast<float>(std::ldexp(steps, exponent));
  }
  return values;
}

SmallSteps::SmallSteps(const SmallFisher& fisher, const FloatTensors& values) {
  for (const auto& [name, tensor] : values) {
    const auto found = fisher.tensors.find(name);
    const double square = mean_square(tensor);
    if (found == fisher.tensors.end() || !std::isfinite(found->second)) continue;
    if (tensor.size() < kLeastElements || !(square > 0)) continue;
    const double log2_most = std::log2(square) / 2 - 1;
    steps_[name] = {found->second > 0 ? -std::log2(found->second) / 2 : INFINITY, log2_most};
  }
  for (const auto& [name, value] : fisher.gains)
    if (value > 0 && std::isfinite(value)) gains_[name] = -std::log2(value) / 2;
}

SmallExponents SmallSteps::at(double log2_c) const {
  SmallExponents exponents;
  for (const auto& [name, step] : steps_)
    exponents[name] = static_cast<int>(std::min(std::round(log2_c + step.log2_step), std::floor(step.log2_most)));
  return exponents;
}

std::map<std::string, int> SmallSteps::gain_grids(double log2_c) const {
  std::map<std::string, int> grids;
  const double log2_unit = std::log2(std::numbers::ln2 / kStepsPerOctave);
  for (const auto& [name, log2_step] : gains_) {
    const double log2_grid = std::round(log2_c + log2_step - log2_unit);
    grids[name] = static_cast<int>(std::exp2(std::clamp(log2_grid, 0.0, std::log2(kStepGrid))));
  }
  return grids;
}

uint64_t SmallSteps::key() const {
  Hasher hasher;
  for (const auto& [name, log2_step] : gains_) hasher.add(name).add(std::bit_cast<uint64_t>(log2_step));
  for (const auto& [name, step] : steps_) {
    hasher.add(name);
    for (double value : {step.log2_step, step.log2_most}) hasher.add(std::bit_cast<uint64_t>(value));
  }
  return hasher.digest();
}

}  // namespace thimble
