// distill_input.cpp: see distill_input.h.
#include "quantizer/methods/slope/distill_input.h"

#include <algorithm>
#include <bit>

#include "runtime/base/hash.h"
#include "runtime/device/models.h"
#include "runtime/families/model_weights.h"

namespace thimble {
namespace {

// Sequences held out: every eighth, but no more than that.
constexpr int64_t kHeldOutShare = 8, kMostHeldOut = 4, kMostHeldOutOfData = 16;

}  // namespace

int64_t held_out_sequences(int64_t available, double data_share) {
  return std::clamp<int64_t>(available / kHeldOutShare, 1, data_share > 0 ? kMostHeldOutOfData : kMostHeldOut);
}

DistillSplit split_sequences(int64_t steps, int64_t batch, int64_t available, double data_share) {
  const int64_t held_out = held_out_sequences(available, data_share);
  return {std::min(available - held_out, steps * batch), held_out};
}

DistillSplit split_sequences(const DistillInput& input, int64_t steps, int64_t batch) {
  return split_sequences(steps, batch, input.tokens.count, input.data_share);
}

TokenSequences chosen_sequences(const TokenSequences& from, const DistillSplit& split) {
  TokenSequences tokens{split.count(), from.length, {}};
  auto first = from.tokens.begin();
  tokens.tokens.assign(first, first + split.learned * from.length);
  tokens.tokens.insert(tokens.tokens.end(), from.tokens.end() - split.held_out * from.length, from.tokens.end());
  return tokens;
}

std::unique_ptr<DivergencePass> make_student_pass(const DistillInput& input, const QuantizedModel& student,
                                                  const TokenSequences& tokens, Progress& progress,
                                                  const DivergenceOptions& options) {
  const auto weights = std::make_shared<const Weights>(dequantize_weights(input.original->network, student));
  DivergenceOptions with_data = options;
  with_data.data_share = input.data_share;
  return make_divergence_pass(input.original, weights, tokens, input.device, progress, with_data);
}

double held_out_divergence(DivergencePass& pass, const DistillSplit& split, int64_t length, Progress& progress) {
  double sum = 0;
  progress.begin("comparing", split.held_out, "sequences");
  for (int64_t s = 0; s < split.held_out; ++s) {
    sum += pass.divergence(split.learned + s, 1);
    progress.advance(1);
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
  for (int64_t count : {input.tokens.count, input.tokens.length}) hasher.add(static_cast<uint64_t>(count));
  hasher.add(std::bit_cast<uint64_t>(input.data_share));
  return hasher.digest();
}

}  // namespace thimble
