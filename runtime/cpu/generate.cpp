// generate.cpp: token-by-token sampling through CausalForward with a key/value cache.
#include "runtime/cpu/generate.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "runtime/base/error.h"
#include "runtime/base/random.h"
#include "runtime/cpu/gemm.h"

namespace thimble {

uint16_t sample_token(std::span<const float> logits, double temperature, double uniform) {
  auto peak = std::ranges::max_element(logits);
  if (!std::isfinite(*peak) || std::ranges::any_of(logits, [](float logit) { return std::isnan(logit); }))
    throw Error(ExitCode::kBadInput, "the model's logits are not finite; its weights are damaged");
  if (temperature == 0) return static_cast<uint16_t>(peak - logits.begin());
  thread_local std::vector<double> cumulative;
  cumulative.clear();
  double sum = 0;
  for (float logit : logits) {
    sum += std::exp((static_cast<double>(logit) - *peak) / temperature);
    cumulative.push_back(sum);
  }
  auto chosen = std::ranges::upper_bound(cumulative, uniform * sum);
  if (chosen == cumulative.end()) --chosen;  // uniform * sum may round up to sum
  return static_cast<uint16_t>(chosen - cumulative.begin());
}

uint16_t first_calibration_token(int64_t vocab_size, const CalibrationOptions& options, int64_t sequence) {
  double uniform = uniform_at(options.seed, static_cast<uint64_t>(sequence), 0);
  return static_cast<uint16_t>(uniform * static_cast<double>(vocab_size));
}

int64_t calibration_batch(const CacheShape& shape, const CalibrationOptions& options) {
  auto fitting = static_cast<int64_t>(kMaxCacheBytes / KeyValueCache::bytes_per_sequence(shape, options.length));
  int64_t batches = (options.sequences + std::max<int64_t>(1, fitting) - 1) / std::max<int64_t>(1, fitting);
  return (options.sequences + batches - 1) / batches;
}

namespace {

// Generates sequences [first, first + count) into `out` (count, length) as one batch.
void generate_batch(CausalForward& forward, const CalibrationOptions& options, int64_t first, int64_t count,
                    std::span<uint16_t> out, Progress& progress) {
  // A product of one row rounds differently (gemm.h); a sequence that is alone gets an idle companion.
  int64_t rows = std::max<int64_t>(2, count);
  KeyValueCache cache(forward.backend(), forward.cache_shape(), rows, options.length, /*shared_layers=*/false);
  BackendMatrix logits;
  logits.resize(forward.backend(), rows, forward.vocab_size());
  TokenBatch batch;
  batch.tokens.assign(static_cast<size_t>(rows), 0);
  batch.previous.assign(static_cast<size_t>(rows), TokenBatch::kNoToken);
  for (int64_t s = 0; s < count; ++s)
    batch.tokens[static_cast<size_t>(s)] = first_calibration_token(forward.vocab_size(), options, first + s);
  for (int64_t position = 0; position < options.length; ++position) {
    for (int64_t s = 0; s < count; ++s)
      out[static_cast<size_t>(s * options.length + position)] =
          static_cast<uint16_t>(batch.tokens[static_cast<size_t>(s)]);
    progress.advance(count);
    if (position + 1 == options.length) break;
    batch.shape = {rows, 1, position};
    forward.logits(forward.hidden_states(batch, cache, 0), logits);
    forward.backend().finish();
    batch.previous = batch.tokens;
    for (int64_t s = 0; s < count; ++s) {
      double uniform = uniform_at(options.seed, static_cast<uint64_t>(first + s), static_cast<uint64_t>(position + 1));
      batch.tokens[static_cast<size_t>(s)] =
          sample_token({logits.view().row(s), static_cast<size_t>(logits.cols())}, options.temperature, uniform);
    }
  }
}

}  // namespace

TokenSequences generate_calibration(CausalForward& forward, const CalibrationOptions& options, int64_t first,
                                    int64_t count, Progress& progress) {
  assert(options.length == forward.context_length());
  TokenSequences out{count, options.length, std::vector<uint16_t>(static_cast<size_t>(count * options.length))};
  for (int64_t start = 0; start < count; start += kMostFewRows) {
    int64_t some = std::min(kMostFewRows, count - start);
    auto share = std::span(out.tokens)
                     .subspan(static_cast<size_t>(start * options.length), static_cast<size_t>(some * options.length));
    generate_batch(forward, options, first + start, some, share, progress);
  }
  return out;
}

void generate_text(CausalForward& forward, std::span<const uint16_t> prompt, int64_t max_new_tokens, double temperature,
                   uint64_t seed, const std::function<bool(uint16_t)>& on_token) {
  int64_t length = static_cast<int64_t>(prompt.size()) + max_new_tokens;
  assert(!prompt.empty() && length <= forward.context_length());
  KeyValueCache cache(forward.backend(), forward.cache_shape(), 1, length, /*shared_layers=*/false);
  BackendMatrix logits;
  logits.resize(forward.backend(), 1, forward.vocab_size());
  TokenBatch batch = window_batch(prompt);
  for (int64_t i = 0; i < max_new_tokens; ++i) {
    ConstMatrixView hidden = forward.hidden_states(batch, cache, batch.shape.positions - 1);
    forward.logits(hidden, logits);
    forward.backend().finish();
    uint16_t token = sample_token(logits.values(), temperature, uniform_at(seed, 0, static_cast<uint64_t>(i)));
    if (!on_token(token)) return;
    batch.shape = {1, 1, batch.shape.first_position + batch.shape.positions};
    batch.previous = {batch.tokens.back()};
    batch.tokens = {token};
  }
}

}  // namespace thimble
