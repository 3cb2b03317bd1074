// gain_tuner.cpp: see gain_tuner.h.
#include "gptq/slope/gain_tuner.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>

#include "gptq/slope/adam.h"

namespace thimble {
namespace {

constexpr double kQuietGains = 0.5;  // of AdamStep

double root_mean_square(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value * value;
  return std::sqrt(sum / static_cast<double>(std::max<size_t>(1, values.size())));
}

TunedTensor untuned(std::vector<double> values, double rate) {
  const std::vector<double> zeros(values.size());
  return {std::move(values), zeros, zeros, rate};
}

// Step number `step`, from 1.
void step_tensor(const std::vector<double>& gradient, int64_t step, double share_of_rate, TunedTensor& tensor) {
  adam_step(
      {step, share_of_rate * tensor.rate, kQuietGains}, [&](size_t i) { return gradient[i]; }, std::span(tensor.values),
      std::span(tensor.first), std::span(tensor.second));
}

std::vector<float> gains_of(const TunedTensor& logarithms) {
  std::vector<float> gains;
  for (double value : logarithms.values) gains.push_back(static_cast<float>(std::exp(value)));
  return gains;
}

void divide(GainGradients& sums, double positions) {
  for (NamedGradients* named : {&sums.rows, &sums.small})
    for (auto& [name, values] : *named)
      for (double& value : values) value /= positions;
  sums.head /= positions;
  sums.divergence /= positions;
}

}  // namespace

GainTuner::GainTuner(const GainTunerInput& input, const GainTunerOptions& options)
    : head_(untuned({0.0}, options.row_rate)) {
  for (const auto& [name, rows] : input.row_layers)
    rows_[name] = untuned(std::vector<double>(static_cast<size_t>(rows)), options.row_rate);
  for (const auto& [name, values] : input.small) {
    std::vector<double> wide(values.begin(), values.end());
    // Gates are tuned before sigma, where 1 is the natural unit.
    const double unit = name.ends_with("gate") || name.ends_with("gates") ? 1 : root_mean_square(wide);
    small_[name] = untuned(std::move(wide), options.small_rate * unit);
  }
}

GainGradients GainTuner::gradients(DivergencePass& pass, const GainTunerInput& input, const GainTunerOptions& options,
                                   bool sums_matrices) const {
  pass.set(gains());
  return pass.gradients(next_sequence_, batch(input, options), sums_matrices);
}

void GainTuner::move(GainGradients sums, const GainTunerInput& input, const GainTunerOptions& options) {
  const int64_t count = batch(input, options);
  divide(sums, static_cast<double>(count * input.positions));
  const double progress_share = static_cast<double>(steps_done_) / static_cast<double>(options.steps);
  const double share_of_rate = (1 + std::cos(std::numbers::pi * progress_share)) / 2;
  ++steps_done_;
  for (auto& [name, tensor] : rows_) step_tensor(sums.rows.at(name), steps_done_, share_of_rate, tensor);
  for (auto& [name, tensor] : small_) step_tensor(sums.small.at(name), steps_done_, share_of_rate, tensor);
  if (input.tune_head) step_tensor({sums.head}, steps_done_, share_of_rate, head_);
  next_sequence_ = next_sequence_ + count < input.sequences ? next_sequence_ + count : 0;
}

Gains GainTuner::gains() const {
  Gains gains;
  for (const auto& [name, tensor] : rows_) gains.rows[name] = gains_of(tensor);
  gains.head = gains_of(head_)[0];
  for (const auto& [name, tensor] : small_) gains.small[name].assign(tensor.values.begin(), tensor.values.end());
  return gains;
}

}  // namespace thimble
