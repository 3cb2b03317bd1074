// gain_tuner.h: self-distillation with the codes frozen: gains of rows and small tensors that bring a quantized model
// back to its original. Rounding leaves errors that add up in a few directions (weights shrunk towards zero, sharper or
// flatter predictions); gains undo what lies in those.
//   minimise sum over positions of KL(original || quantized), by Adam (Kingma and Ba, arXiv 1412.6980) with bias
//   correction and a step that falls along a cosine to 0
// In: DivergencePass.  Out: Gains. Deterministic: minibatches are consecutive sequences, in order, over and over. What
// stands between two steps can be kept and gone on from.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/ops/divergence_pass.h"

namespace thimble {

struct GainTunerOptions {
  int64_t steps = 0;
  int64_t batch = 8;         // sequences of a step
  double row_rate = 4e-3;    // first step's change of the logarithm of a gain
  double small_rate = 4e-3;  // of a small tensor's elements, relative to their root mean square
};

// Rows of `row_layers` (linear_layers.h) and, with `tune_head`, the head's common gain are tuned, and all of `small`,
// the student's small tensors to begin with. Sequences [0, sequences) are learned from, the sum of positions of each
// being `positions`.
struct GainTunerInput {
  std::vector<std::pair<std::string, int64_t>> row_layers;  // and their numbers of rows
  bool tune_head = false;
  FloatTensors small;
  int64_t sequences = 0, positions = 0;
};

// The parameters of one tensor, or the logarithms of its gains, with Adam's moments.
struct TunedTensor {
  std::vector<double> values, first, second;
  double rate = 0;  // how far an element moves in a step, at most about

  friend auto members(TunedTensor& tensor) { return std::tie(tensor.values, tensor.first, tensor.second, tensor.rate); }
};

class GainTuner {
 public:
  GainTuner() = default;  // to be read from an archive
  GainTuner(const GainTunerInput& input, const GainTunerOptions& options);

  int64_t steps_done() const { return steps_done_; }
  // The next of options.steps steps.
  void step(DivergencePass& pass, const GainTunerInput& input, const GainTunerOptions& options) {
    move(gradients(pass, input, options), input, options);
  }
  // Its halves: sets the pass to the gains as they are and sums, with `sums_matrices` also by matrices; then moves.
  GainGradients gradients(DivergencePass& pass, const GainTunerInput& input, const GainTunerOptions& options,
                          bool sums_matrices = false) const;
  void move(GainGradients sums, const GainTunerInput& input, const GainTunerOptions& options);
  Gains gains() const;

  // What it consists of, for who keeps it between two steps.
  friend auto members(GainTuner& tuner) {
    return std::tie(tuner.steps_done_, tuner.next_sequence_, tuner.rows_, tuner.small_, tuner.head_);
  }

 private:
  // Sequences of the next step.
  int64_t batch(const GainTunerInput& input, const GainTunerOptions& options) const {
    return std::min(options.batch, input.sequences - next_sequence_);
  }

  int64_t steps_done_ = 0, next_sequence_ = 0;
  std::map<std::string, TunedTensor> rows_, small_;
  TunedTensor head_;
};

}  // namespace thimble
