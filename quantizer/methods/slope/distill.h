// distill.h: the last step of the method `slope`: tunes gains and small tensors of a quantized model on calibration
// tokens (gptq/slope/gain_tuner.h) and puts them where the artifact has room for them: row steps in 1/64 octave, small
// tensors in the type they are stored in.
#pragma once

#include <optional>

#include "gptq/slope/gain_tuner.h"
#include "quantizer/methods/encoder.h"
#include "quantizer/methods/method.h"
#include "runtime/device/device.h"
#include "runtime/ops/token_sequences.h"
#include "runtime/ops/weights.h"

namespace thimble {

struct DistillInput {
  std::shared_ptr<const Weights> original;
  const TokenSequences& tokens;  // at least two sequences
  const Device& device;
  GainTunerOptions options;
  const SharedWork& work;  // what stands between two steps is a piece of it, and so is each divergence
  uint64_t key = 0;        // hash of the original and the tokens
};

struct Distilled {
  QuantizedModel model;  // the tuned one, whether it is kept or not
  DistillReport report;
};

// How many of `available` sequences, the last ones, nothing is learned from: at least one of them, and no more than
// tell two models apart.
int64_t held_out_sequences(int64_t available);

// How many of `available` sequences of `length` tokens it reads.
int64_t distill_sequences(const Network& network, const GainTunerOptions& options, int64_t available, int64_t length);

// Both collective.
Distilled distill(const DistillInput& input, const QuantizedModel& model, Progress& progress);

// Mean KL of any model on the sequences that distill() holds out.
double held_out_divergence(const DistillInput& input, const QuantizedModel& model, Progress& progress);

// Bytes that tuned row steps are going to add to an artifact: about what random ones do.
int64_t distill_reserve_bytes(const QuantizedModel& model, const Network& network, uint64_t artifact_bytes,
                              const EncodeOptions& encode, Encoder& encoder, Progress& progress);

}  // namespace thimble
