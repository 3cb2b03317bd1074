// gain_tuner.cpp: see gain_tuner.h.
#include "gptq/slope/gain_tuner.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace thimble {
namespace {

constexpr double kFirstMomentDecay = 0.9, kSecondMomentDecay = 0.95;
// An element whose gradients are much smaller than its tensor's hardly matters, and what they say is mostly noise: it
// moves in proportion to them, not at full speed.
constexpr double kQuietShare = 0.5;

double root_mean_square(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value * value;
  return std::sqrt(sum / static_cast<double>(std::max<size_t>(1, values.size())));
}

// The parameters of one tensor, or the logarithms of its gains.
class Adam {
 public:
  // `rate`: how far an element moves in a step, at most about.
  Adam(std::vector<double> values, double rate)
      : values_(std::move(values)), rate_(rate), first_(values_.size()), second_(values_.size()) {}

  // Step number `step`, from 1.
  void move(const std::vector<double>& gradient, int64_t step, double share_of_rate) {
    const auto t = static_cast<double>(step);
    const double first_bias = 1 - std::pow(kFirstMomentDecay, t), second_bias = 1 - std::pow(kSecondMomentDecay, t);
    double mean_second = 0;
    for (size_t i = 0; i < values_.size(); ++i) {
      first_[i] += (1 - kFirstMomentDecay) * (gradient[i] - first_[i]);
      second_[i] += (1 - kSecondMomentDecay) * (gradient[i] * gradient[i] - second_[i]);
      mean_second += second_[i] / static_cast<double>(values_.size());
    }
    if (mean_second == 0) return;
    const double quiet = kQuietShare * std::sqrt(mean_second / second_bias);
    for (size_t i = 0; i < values_.size(); ++i)
      values_[i] -= share_of_rate * rate_ * first_[i] / first_bias / (std::sqrt(second_[i] / second_bias) + quiet);
  }

  const std::vector<double>& values() const { return values_; }

 private:
  std::vector<double> values_;
  double rate_;
  std::vector<double> first_, second_;
};

std::vector<float> gains_of(const Adam& logarithms) {
  std::vector<float> gains;
  for (double value : logarithms.values()) gains.push_back(static_cast<float>(std::exp(value)));
  return gains;
}

class Tuner {
 public:
  Tuner(const GainTunerInput& input, const GainTunerOptions& options) : head_({0.0}, options.row_rate) {
    for (const auto& [name, rows] : input.row_layers)
      rows_.emplace(name, Adam(std::vector<double>(static_cast<size_t>(rows)), options.row_rate));
    for (const auto& [name, values] : input.small) {
      std::vector<double> wide(values.begin(), values.end());
      // Gates are tuned before sigma, where 1 is the natural unit.
      const double unit = name.ends_with("gate") || name.ends_with("gates") ? 1 : root_mean_square(wide);
      small_.emplace(name, Adam(std::move(wide), options.small_rate * unit));
    }
  }

  void move(const GainGradients& gradients, const GainTunerInput& input, int64_t step, double share_of_rate) {
    for (auto& [name, adam] : rows_) adam.move(gradients.rows.at(name), step, share_of_rate);
    for (auto& [name, adam] : small_) adam.move(gradients.small.at(name), step, share_of_rate);
    if (input.tune_head) head_.move({gradients.head}, step, share_of_rate);
  }

  Gains gains() const {
    Gains gains;
    for (const auto& [name, adam] : rows_) gains.rows[name] = gains_of(adam);
    gains.head = gains_of(head_)[0];
    for (const auto& [name, adam] : small_) gains.small[name].assign(adam.values().begin(), adam.values().end());
    return gains;
  }

 private:
  std::map<std::string, Adam> rows_, small_;
  Adam head_;
};

void divide(GainGradients& sums, double positions) {
  for (NamedGradients* named : {&sums.rows, &sums.small})
    for (auto& [name, values] : *named)
      for (double& value : values) value /= positions;
  sums.head /= positions;
  sums.divergence /= positions;
}

}  // namespace

Gains tune_gains(DivergencePass& pass, const GainTunerInput& input, const GainTunerOptions& options,
                 Progress& progress) {
  Tuner tuner(input, options);
  progress.begin("distilling", options.steps, "steps");
  int64_t first = 0;
  for (int64_t step = 0; step < options.steps; ++step) {
    const int64_t count = std::min(options.batch, input.sequences - first);
    pass.set(tuner.gains());
    GainGradients gradients = pass.gradients(first, count);
    divide(gradients, static_cast<double>(count * input.positions));
    const double progress_share = static_cast<double>(step) / static_cast<double>(options.steps);
    tuner.move(gradients, input, step + 1, (1 + std::cos(std::numbers::pi * progress_share)) / 2);
    first = first + count < input.sequences ? first + count : 0;
    progress.advance(1);
  }
  progress.end();
  return tuner.gains();
}

}  // namespace thimble
