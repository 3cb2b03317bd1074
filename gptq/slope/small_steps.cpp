// small_steps.cpp: see small_steps.h.
#include "gptq/slope/small_steps.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "runtime/base/hash.h"

namespace thimble {
namespace {

constexpr double kDataShare = 0.5;

double mean_square(const std::vector<float>& values) {
  double sum = 0;
  for (float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum / static_cast<double>(std::max<size_t>(1, values.size()));
}

}  // namespace

DivergenceOptions fisher_pass_options() { return {.sums_rows = false, .data_share = kDataShare}; }

SmallFisher small_fisher(DivergencePass& original, int64_t sequences, int64_t positions) {
  NamedGradients sums;
  std::map<std::string, double> squares;  // summed over sequences and elements
  for (int64_t s = 0; s < sequences; ++s) {
    for (const auto& [name, gradient] : original.gradients(s, 1).small) {
      std::vector<double>& sum = sums[name];
      sum.resize(gradient.size());
      for (size_t i = 0; i < gradient.size(); ++i) {
        sum[i] += gradient[i];
        squares[name] += gradient[i] * gradient[i];
      }
    }
  }
  const auto count = static_cast<double>(sequences);
  SmallFisher fisher;
  for (const auto& [name, sum] : sums) {
    double of_means = 0;
    for (double value : sum) of_means += value * value / count;
    const double variance = std::max(0.0, squares.at(name) - of_means) / (count - 1);
    const auto elements = static_cast<double>(std::max<size_t>(1, sum.size()));
    fisher[name] = variance / (kDataShare * kDataShare) / elements / static_cast<double>(positions);
  }
  return fisher;
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
    const auto found = fisher.find(name);
    const double square = mean_square(tensor);
    if (found == fisher.end() || !std::isfinite(found->second)) continue;
    if (tensor.size() < kLeastElements || !(square > 0)) continue;
    const double log2_most = std::log2(square) / 2 - 1;
    steps_[name] = {found->second > 0 ? -std::log2(found->second) / 2 - 1 : INFINITY, log2_most};
  }
}

SmallExponents SmallSteps::at(double log2_c) const {
  SmallExponents exponents;
  for (const auto& [name, step] : steps_)
    exponents[name] = static_cast<int>(std::min(std::round(log2_c + step.log2_step), std::floor(step.log2_most)));
  return exponents;
}

uint64_t SmallSteps::key() const {
  Hasher hasher;
  for (const auto& [name, step] : steps_) {
    hasher.add(name);
    for (double value : {step.log2_step, step.log2_most}) hasher.add(std::bit_cast<uint64_t>(value));
  }
  return hasher.digest();
}

}  // namespace thimble
