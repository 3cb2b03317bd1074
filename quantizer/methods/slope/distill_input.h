// distill_input.h: what distillation (distill.h) and learning of codes (learn_codes.h) work on: the original, and
// calibration sequences to learn from and others, held out, to judge by.
#pragma once

#include <cstdint>
#include <memory>

#include "gptq/slope/code_learner.h"
#include "gptq/slope/gain_tuner.h"
#include "quantizer/methods/shared_work.h"
#include "runtime/base/progress.h"
#include "runtime/device/device.h"
#include "runtime/ops/divergence_pass.h"
#include "runtime/ops/token_sequences.h"
#include "runtime/ops/weights.h"

namespace thimble {

struct DistillInput {
  std::shared_ptr<const Weights> original;
  const TokenSequences& tokens;  // at least two sequences
  const Device& device;
  GainTunerOptions options;       // 0 steps: no distillation
  const SharedWork& work;         // what stands between two steps is a piece of it, and so is each divergence
  uint64_t key = 0;               // hash of the original and the tokens
  CodeLearnerOptions codes = {};  // 0 steps: codes are not learned
  bool learns_rows = false;       // gains of rows with them
  bool is_given = false;          // somebody wrote the tokens
  double data_share = 0;          // DivergenceOptions, as is:
  double temperature = 1;
  TokenSequences at_home = {};  // drawn from the original within home_context(), where that is shorter than `tokens`
};

// How many of `available` sequences, the last ones, nothing is learned from: at least one of them, and no more than
// tell two models apart. That takes more of what somebody wrote, where the data may count.
int64_t held_out_sequences(int64_t available, bool is_given);

// How many sequences are read: first those to learn from, then those held out.
struct DistillSplit {
  int64_t learned = 0, held_out = 0;
  int64_t count() const { return learned + held_out; }
};

// Of `available` sequences, for so many steps of so many; the held-out ones are the same for any.
DistillSplit split_sequences(int64_t steps, int64_t batch, int64_t available, bool is_given);
DistillSplit split_sequences(const DistillInput& input, int64_t steps, int64_t batch);
// The first sequences to learn from and the last ones to hold out.
TokenSequences chosen_sequences(const TokenSequences& from, const DistillSplit& split);

// With sequences at home: the temperature that makes good what the original's sureness loses by the context of
// `tokens`, the ratio of those at which it is most likely to give the sequences at home as it predicts them and as it
// would within that context. Else that at which it is most likely to give the sequences that are learned from, which
// somebody wrote; 1 where they do not tell it from that. 1 where it is far from that. Collective.
double fitted_temperature(const DistillInput& input, Progress& progress);

// What the data counts for beside an original at a temperature that was fitted to text that somebody wrote: as much as
// that makes it surer, but at most a tenth. Whose sureness falls short on text that it was made for has something left
// to learn there; whose does not has learned what there is, or more.
double fitted_data_share(double temperature);

// `tokens` must outlive the result.
std::unique_ptr<DivergencePass> make_student_pass(const DistillInput& input, const QuantizedModel& student,
                                                  const TokenSequences& tokens, Progress& progress,
                                                  const DivergenceOptions& options = {});

// Mean KL(original || model) in nats per token on the sequences held out; `model` as it is stored. Collective.
double held_out_divergence(const DistillInput& input, const QuantizedModel& model, Progress& progress);
// The same of the student that a pass over chosen_sequences(split) has.
double held_out_divergence(DivergencePass& pass, const DistillSplit& split, int64_t length, Progress& progress);

// Hash of a model and all that its held-out divergence depends on.
uint64_t divergence_key(const DistillInput& input, const QuantizedModel& model);

}  // namespace thimble
