// scorer.h: what an evaluation asks of a model, whatever computes it: the CPU, CUDA devices, several of them, several
// processes. A scorer has no memory: every result is a function of the arguments of its window alone, the same bits
// whatever else is computed in the same call.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "runtime/ops/finite_check.h"
#include "runtime/ops/token_sequences.h"
#include "runtime/tensor/matrix.h"

namespace thimble {

// One window of an evaluation: what the model reads, and the tokens that follow its last inputs.
struct ScoreWindow {
  std::span<const Token> inputs;   // 1 .. context tokens
  std::span<const Token> targets;  // targets[i] follows inputs[inputs.size() - targets.size() + i]; at least one
};

class Scorer {
 public:
  virtual ~Scorer() = default;

  virtual int64_t vocabulary() const = 0;
  // No window has more inputs. Rotary angles of some families depend on it.
  virtual int64_t context() const = 0;
  // How many windows a call of score() should get, for speed; any number is accepted.
  virtual int64_t preferred_windows() const = 0;

  // Negative log-likelihood in nats of every target, window after window: nll.size() is the sum of targets.size().
  virtual void score(std::span<const ScoreWindow> windows, std::span<float> nll) = 0;
  // Log-probabilities (out.rows, V) of the tokens after inputs: the distributions behind score() of a window with these
  // inputs and `targets` targets, from target `first` on.
  virtual void log_probabilities(std::span<const Token> inputs, int64_t targets, int64_t first, MatrixView out) = 0;
  // Of all targets, out.rows of them.
  void log_probabilities(std::span<const Token> inputs, MatrixView out) { log_probabilities(inputs, out.rows, 0, out); }
  // The first NaN or infinity among the inputs of linear layers below the head, in the order in which a pass over
  // `inputs` computes them.
  virtual std::optional<NonFinite> find_non_finite_input(std::span<const Token> inputs) = 0;
};

}  // namespace thimble
