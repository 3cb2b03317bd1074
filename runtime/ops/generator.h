// generator.h: sampling text from a model, whatever computes it: calibration sequences, continuations of a prompt.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "runtime/base/progress.h"
#include "runtime/ops/token_sequences.h"

namespace thimble {

struct CalibrationOptions {
  int64_t sequences = 64;
  int64_t length = 2048;
  double temperature = 0.8;
  uint64_t seed = 0;
};

struct TextOptions {
  int64_t most_new_tokens = 0;
  double temperature = 0;
  uint64_t seed = 0;
};

// Text for a model to write.
struct TextScript {
  static constexpr Token kDrawn = -1;

  CalibrationOptions options;
  std::vector<Token> given;        // (sequences, length): kDrawn where the model draws; the first of each is given
  std::vector<Token> never_drawn;  // ascending, below the vocabulary, not all of it

  // Sequences [first, first + count) of `given`.
  std::span<const Token> sequences(int64_t first, int64_t count) const {
    return std::span(given).subspan(static_cast<size_t>(first * options.length),
                                    static_cast<size_t>(count * options.length));
  }
};

// The first token of each sequence is uniform over the vocabulary, all others are drawn.
TextScript uniform_script(int64_t vocabulary, const CalibrationOptions& options);

class Generator {
 public:
  virtual ~Generator() = default;

  // How many sequences a call of calibration() should get, for speed and so that an interrupted run loses little; any
  // number is accepted.
  virtual int64_t preferred_sequences(const CalibrationOptions& options) const = 0;
  // Sequences [first, first + count) of the script. Sequence s uses random stream s, and its tokens are the same
  // whichever others are generated with it. The script's length is the context that the generator was made for.
  // Progress advances by one per token.
  virtual TokenSequences calibration(const TextScript& script, int64_t first, int64_t count, Progress& progress) = 0;
  // Continues `prompt` (at least one token), together with what is new at most the context; `on_token` sees each new
  // token and returns false to stop.
  virtual void text(std::span<const Token> prompt, const TextOptions& options,
                    const std::function<bool(Token)>& on_token) = 0;
};

// The token at which the cumulative softmax(logits / temperature) passes `uniform` in [0, 1); sums in float64.
// Temperature 0 takes the likeliest token, the lowest id among equals. A logit of minus infinity is never drawn.
Token sample_token(std::span<const float> logits, double temperature, double uniform);

}  // namespace thimble
