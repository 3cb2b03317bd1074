// generate.h: sampling text from a model: the self-generated calibration set, and continuations of a prompt.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "runtime/base/progress.h"
#include "runtime/cpu/causal_forward.h"

namespace thimble {

// Tokens of `count` sequences of equal length, one after another.
struct TokenSequences {
  int64_t count = 0;
  int64_t length = 0;
  std::vector<uint16_t> tokens;  // (count, length)
  std::span<const uint16_t> sequence(int64_t i) const {
    return std::span(tokens).subspan(static_cast<size_t>(i * length), static_cast<size_t>(length));
  }
};

struct CalibrationOptions {
  int64_t sequences = 64;
  int64_t length = 2048;
  double temperature = 0.8;
  uint64_t seed = 0;
};

// The token at which the cumulative softmax(logits / temperature) passes `uniform` in [0, 1); sums in float64.
// Temperature 0 takes the likeliest token, the lowest id among equals.
uint16_t sample_token(std::span<const float> logits, double temperature, double uniform);

// The first token of calibration sequence `sequence`: uniform over the vocabulary.
uint16_t first_calibration_token(int64_t vocab_size, const CalibrationOptions& options, int64_t sequence);

// How many of the sequences run as one batch: as many as their key/value caches fit in kMaxCacheBytes, at least one,
// spread evenly. Depends on the model and options alone, never on the machine.
constexpr uint64_t kMaxCacheBytes = uint64_t{1} << 30;
int64_t calibration_batch(const CacheShape& shape, const CalibrationOptions& options);

// Sequences [first, first + count) of the calibration set: first token uniform over the vocabulary, each next one drawn
// from the model. Sequence s uses random stream s. The tokens of a sequence are the same whichever others are generated
// with it. Progress advances by one per token. options.length must be the model's context length.
TokenSequences generate_calibration(CausalForward& forward, const CalibrationOptions& options, int64_t first,
                                    int64_t count, Progress& progress);

// Continues `prompt` (at least one token) by at most `max_new_tokens` tokens, together at most the context length;
// `on_token` sees each and returns false to stop.
void generate_text(CausalForward& forward, std::span<const uint16_t> prompt, int64_t max_new_tokens, double temperature,
                   uint64_t seed, const std::function<bool(uint16_t)>& on_token);

}  // namespace thimble
