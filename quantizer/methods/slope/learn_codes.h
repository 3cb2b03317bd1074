// learn_codes.h: the step of the method `slope` between solving and distillation: codes of matrices, and small tensors
// with them, learned by the gradient of the divergence from the original (gptq/slope/code_learner.h) over calibration
// tokens. Steps stay as they are, but for gains of rows, which large models learn too. What is learned are latents:
// codes of as many bits as an artifact has room for are made of them afterwards. A model too large for latents and
// gradients of all its matrices at once learns block by block: some layers' codes, while all others stay as they are.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "quantizer/methods/method.h"
#include "quantizer/methods/slope/distill_input.h"

namespace thimble {

struct LearnedCodes {
  CodeLearner learner;
  // What was learned beside the codes; the head's gain is that of the matrix of this name.
  Gains gains;
  std::string head;
  int64_t steps = 0, sequences = 0, held_out = 0;  // steps that were done
  double data_share = 0, temperature = 1;          // DivergenceOptions

  // A model of the same matrices with learned codes instead of its own, whatever its steps: a bit weighs `rate_weight`
  // squared levels in the choice of paths.
  QuantizedModel codes_in(QuantizedModel model, double rate_weight) const;
  // How many codes of learned matrices differ, of all codes of matrices.
  double changed_share(const QuantizedModel& from, const QuantizedModel& to) const;
};

// The names of matrices that learn at a time: consecutive ones of at most so many weights, or a single one.
std::vector<std::set<std::string>> learned_blocks(const Network& network, int64_t most_weights);

// Of the matrices of these names in a model that the program runs: input.codes.steps steps from a model on, whose
// divergence is known. Every few steps the latents are a piece of work, and the sequences held out tell how far the
// model is: what was nearest counts, and learning ends early where it has gone far from it. Collective.
LearnedCodes learn_codes(const DistillInput& input, const QuantizedModel& model, double divergence,
                         const std::set<std::string>& block, Progress& progress);

// What a bit more or less changes the divergence that codes are to blame for, in nats per token: at high rates the loss
// falls to a quarter with a bit more for every weight (Gersho and Gray, Vector Quantization and Signal Compression,
// 1992, section 5.6), and steps were chosen so that all weights share that.
double bit_price(const QuantizedModel& model, double divergence);

// That divergence: from the original's own predictions on the sequences held out, of which another temperature and the
// data are no part. `divergence`: from what the model is to learn. Collective.
double divergence_of_codes(const DistillInput& input, const QuantizedModel& model, double divergence,
                           Progress& progress);

// What the latents of these matrices take of the host's memory, besides the passes over the model.
uint64_t code_learning_bytes(const Network& network, const std::set<std::string>& block);

}  // namespace thimble
