// distill_input.cpp: see distill_input.h.
#include "quantizer/methods/slope/distill_input.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>

#include "runtime/base/hash.h"
#include "runtime/device/models.h"
#include "runtime/families/model_weights.h"

namespace thimble {
namespace {

// Sequences held out: every eighth, but no more than that.
constexpr int64_t kHeldOutShare = 8, kMostHeldOut = 4, kMostHeldOutOfGiven = 16;

// A temperature is fitted to about so many tokens by Newton's method, and told from 1 by so many standard errors.
constexpr int64_t kFittedTokens = 1 << 15;
constexpr int kNewtonSteps = 5;
constexpr double kSignificance = 3;
constexpr double kNewtonEnd = 1e-4;  // far less than what a temperature is rounded to
// One that is further from 1 says that somebody drew the text from the model, at a temperature, or that it is of
// another kind than what the model is for.
constexpr double kFarthest = 1.15;

constexpr double kMostDataShare = 0.1;

// The inverse temperature at which a model is most likely to give a text, and its standard error.
struct InverseTemperature {
  double value = 1, error = 0;
};

InverseTemperature fit_temperature(DivergencePass& model, int64_t sequences) {
  InverseTemperature fitted;
  double moved = 1;
  for (int i = 0; i <= kNewtonSteps && std::abs(moved) > kNewtonEnd; ++i) {
    const TemperatureSlope sums = model.temperature_slope(0, sequences, 1 / fitted.value);
    if (!(sums.curvature > 0)) return {};
    const double next = std::clamp(fitted.value - sums.slope / sums.curvature, 0.5, 2.0);
    moved = next - fitted.value;
    fitted = {next, std::sqrt(sums.squares) / sums.curvature};
  }
  return fitted;
}

InverseTemperature fit_temperature(const std::shared_ptr<const Weights>& model, const TokenSequences& tokens,
                                   const Device& device, Progress& progress) {
  return fit_temperature(*make_divergence_pass(model, model, tokens, device, progress, {}), tokens.count);
}

// Of what is fitted: rounding differs from device to device.
double in_thousandths(double value) { return std::round(value * 1000) / 1000; }

// `inverse`, of a temperature, as the temperature that models are tuned to: 1 where it is too far from that.
double plausible_temperature(double inverse) {
  if (std::max(inverse, 1 / inverse) > kFarthest) return 1;
  return in_thousandths(1 / inverse);
}

}  // namespace

int64_t held_out_sequences(int64_t available, bool is_given) {
  return std::clamp<int64_t>(available / kHeldOutShare, 1, is_given ? kMostHeldOutOfGiven : kMostHeldOut);
}

DistillSplit split_sequences(int64_t steps, int64_t batch, int64_t available, bool is_given) {
  const int64_t held_out = held_out_sequences(available, is_given);
  return {std::min(available - held_out, steps * batch), held_out};
}

DistillSplit split_sequences(const DistillInput& input, int64_t steps, int64_t batch) {
  return split_sequences(steps, batch, input.tokens.count, input.is_given);
}

TokenSequences chosen_sequences(const TokenSequences& from, const DistillSplit& split) {
  TokenSequences tokens{split.count(), from.length, {}};
  auto first = from.tokens.begin();
  tokens.tokens.assign(first, first + split.learned * from.length);
  tokens.tokens.insert(tokens.tokens.end(), from.tokens.end() - split.held_out * from.length, from.tokens.end());
  return tokens;
}

namespace {

// Of text that somebody gave.
double temperature_of_given(const DistillInput& input, Progress& progress) {
  const int64_t most = std::max<int64_t>(1, kFittedTokens / input.tokens.length);
  const TokenSequences tokens = chosen_sequences(input.tokens, {split_sequences(input, 1, most).learned, 0});
  const InverseTemperature found = fit_temperature(input.original, tokens, input.device, progress);
  const bool is_told_apart = std::abs(found.value - 1) > kSignificance * found.error;
  return is_told_apart ? plausible_temperature(found.value) : 1;
}

// The same tokens twice, so that what chance drew there, and at which temperature, counts for both.
double temperature_of_context(const DistillInput& input, Progress& progress) {
  const auto turned = std::make_shared<Weights>(*input.original);
  turned->network = std::make_shared<const Network>(network_at(*turned->network, input.tokens.length));
  const double at_home = fit_temperature(input.original, input.at_home, input.device, progress).value;
  return plausible_temperature(fit_temperature(turned, input.at_home, input.device, progress).value / at_home);
}

}  // namespace

double fitted_temperature(const DistillInput& input, Progress& progress) {
  const uint64_t key = Hasher()
                           .add(std::string_view("temperature"))
                           .add(input.key)
                           .add(std::as_bytes(std::span(input.at_home.tokens)))
                           .digest();
  return input.work.result<double>({WorkKind::kScore, key}, [&] {
    return input.at_home.count > 0 ? temperature_of_context(input, progress) : temperature_of_given(input, progress);
  });
}

double fitted_data_share(double temperature) {
  return in_thousandths(std::clamp(1 - temperature, 0.0, kMostDataShare));
}

std::unique_ptr<DivergencePass> make_student_pass(const DistillInput& input, const QuantizedModel& student,
                                                  const TokenSequences& tokens, Progress& progress,
                                                  const DivergenceOptions& options) {
  const auto weights = std::make_shared<const Weights>(dequantize_weights(input.original->network, student));
  DivergenceOptions of_input = options;
  of_input.data_share = input.data_share;
  of_input.temperature = input.temperature;
  return make_divergence_pass(input.original, weights, tokens, input.device, progress, of_input, input.work.ranks());
}

double held_out_divergence(DivergencePass& pass, const DistillSplit& split, int64_t length, Progress& progress) {
  double sum = 0;
  progress.begin("comparing", split.held_out, "sequences");
  const int64_t most = pass.preferred_sequences();
  for (int64_t s = 0; s < split.held_out; s += most) {
    const int64_t count = std::min(most, split.held_out - s);
    for (const double divergence : pass.divergences(split.learned + s, count)) sum += divergence;
    progress.advance(count);
  }
  progress.end();
  return sum / static_cast<double>(split.held_out * (length - 1));
}

double held_out_divergence(const DistillInput& input, const QuantizedModel& model, Progress& progress) {
  return input.work.result<double>({WorkKind::kScore, divergence_key(input, model)}, [&] {
    const DistillSplit split = split_sequences(input, 0, 0);
    const TokenSequences tokens = chosen_sequences(input.tokens, split);
    return held_out_divergence(*make_student_pass(input, model, tokens, progress), split, tokens.length, progress);
  });
}

uint64_t divergence_key(const DistillInput& input, const QuantizedModel& model) {
  Hasher hasher;
  hasher.add(std::string_view("held-out divergence")).add(input.key).add(hash_of(model));
  for (int64_t count : {input.tokens.count, input.tokens.length, int64_t{input.is_given}})
    hasher.add(static_cast<uint64_t>(count));
  for (double value : {input.data_share, input.temperature}) hasher.add(std::bit_cast<uint64_t>(value));
  return hasher.digest();
}

}  // namespace thimble
