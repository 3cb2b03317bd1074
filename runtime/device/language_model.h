// language_model.h: a model on the device that computes it, ready to score and to generate text.
// The seam between what the program asks for and where it runs: backend_language_model.cpp is the reference over
// causal_forward.h, cuda_language_model.cu the CUDA implementation.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "runtime/base/progress.h"
#include "runtime/cpu/generate.h"
#include "runtime/families/golf/model.h"
#include "runtime/ops/finite_check.h"
#include "runtime/tensor/matrix.h"

namespace thimble {

// One window of an evaluation: what the model reads, and the tokens that follow its last inputs.
struct ScoreWindow {
  std::span<const uint16_t> inputs;   // 1 .. context tokens
  std::span<const uint16_t> targets;  // targets[i] follows inputs[inputs.size() - targets.size() + i]; at least one
};

// Every result is a function of the arguments alone, the same bits whatever else is computed in the same call.
class LanguageModel {
 public:
  virtual ~LanguageModel() = default;

  virtual int64_t vocab_size() const = 0;
  // T: no window has more inputs. A golf-gpt's rotary angles depend on it.
  virtual int64_t context() const = 0;
  // How many windows a call of score() should get, for speed; any number is accepted.
  virtual int64_t preferred_windows() const = 0;

  // How many sequences a call of generate_calibration() should get, for speed and so that an interrupted run loses
  // little; any number is accepted.
  virtual int64_t preferred_sequences(const CalibrationOptions& options) const { return options.sequences; }

  // Negative log-likelihood in nats of every target, window after window: nll.size() is the sum of targets.size().
  virtual void score(std::span<const ScoreWindow> windows, std::span<float> nll) = 0;
  // Log-probabilities of the tokens after the last out.rows inputs, (rows, V): the distributions behind score().
  virtual void log_probabilities(std::span<const uint16_t> inputs, MatrixView out) = 0;

  // The first NaN or infinity among the inputs of linear layers below the head, in the order in which a pass over
  // `inputs` computes them.
  virtual std::optional<NonFinite> find_non_finite_input(std::span<const uint16_t> inputs) = 0;

  // Sequences [first, first + count) of the calibration set (generate.h); options.length must be context(). Progress
  // advances by one per token, count * length in all.
  virtual TokenSequences generate_calibration(const CalibrationOptions& options, int64_t first, int64_t count,
                                              Progress& progress) = 0;
  // Continues `prompt` (at least one token) by at most `max_new_tokens` tokens, together at most context();
  // `on_token` sees each and returns false to stop.
  virtual void generate_text(std::span<const uint16_t> prompt, int64_t max_new_tokens, double temperature,
                             uint64_t seed, const std::function<bool(uint16_t)>& on_token) = 0;
};

}  // namespace thimble
