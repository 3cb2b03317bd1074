// token_scorer.h: what the evaluation asks of a language model. Implemented on real models by model_scorer.h.
// A scorer has no memory: every call is a function of its arguments only, or the audits fail it.
#pragma once

#include <cstdint>
#include <span>

#include "eval/score/windows.h"
#include "runtime/tensor/matrix.h"

namespace thimble {

// V = vocabulary size. `tokens` is always the whole stream; ids are below V.
class TokenScorer {
 public:
  virtual ~TokenScorer() = default;

  virtual int64_t vocab_size() const = 0;

  // The context length T that the scorer was made for: no window has more inputs.
  virtual int64_t context() const = 0;

  // How many windows a call of score() should get, for speed; any number must be accepted.
  virtual int64_t preferred_windows() const { return 1; }

  // Negative log-likelihood in nats of each scored target, -ln p(tokens[i + 1] | tokens[first_token .. i]), the
  // windows one after the other: nll_out.size() is the sum of their target_count().
  virtual void score(std::span<const uint16_t> tokens, std::span<const Window> windows, std::span<float> nll_out) = 0;

  // The natural logarithms of the distributions behind score(): row r of `out` is that of target
  // target_begin + r, for window.target_begin <= target_begin and target_begin + out.rows <= window.target_end.
  // out is (any number of targets, V).
  virtual void log_probabilities(std::span<const uint16_t> tokens, const Window& window, int64_t target_begin,
                                 MatrixView out) = 0;
};

}  // namespace thimble
