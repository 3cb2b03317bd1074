// distill.h: the last step of the method `slope`: tunes gains and small tensors of a quantized model on calibration
// tokens (gptq/slope/gain_tuner.h) and puts them where the artifact has room for them: row steps in 1/64 octave, small
// tensors in the type they are stored in.
#pragma once

#include <map>
#include <set>
#include <string>

#include "quantizer/methods/encoder.h"
#include "quantizer/methods/method.h"
#include "quantizer/methods/slope/distill_input.h"
#include "quantizer/methods/slope/small_rounding.h"

namespace thimble {

struct Distilled {
  QuantizedModel model;  // the tuned one, whether it is kept or not
  DistillReport report;
};

// Small tensors are rounded to `small` once they are tuned, before the tuned model is judged. Collective.
Distilled distill(const DistillInput& input, const QuantizedModel& model, const SmallExponents& small,
                  Progress& progress);

// With what gains stand for where the model has room for it, that of the head in the matrix of this name, and its small
// tensors replaced, in the dtype that they are stored in.
QuantizedModel with_gains(QuantizedModel model, const Gains& gains, const std::string& head);
// All small tensors of the network, as the model stores them.
FloatTensors small_tensors(const QuantizedModel& model, const Network& network);

// What distillation tunes of the model, without sequences.
GainTunerInput tuner_input(const QuantizedModel& model, const Network& network);

// What distillation changes: row steps of matrices, and small tensors.
struct TunedNames {
  std::set<std::string> rows, small;
};
TunedNames tuned_names(const Network& network);

// Bytes that tuned row steps are going to add to an artifact: about what random ones do.
int64_t distill_reserve_bytes(const QuantizedModel& model, const TunedNames& names, uint64_t artifact_bytes,
                              const SmallExponents& small, const EncodeOptions& encode, Encoder& encoder,
                              Progress& progress);

}  // namespace thimble
