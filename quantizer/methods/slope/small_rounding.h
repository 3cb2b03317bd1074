// small_rounding.h: small tensors of a quantized model rounded to the steps that their own loss allows
// (gptq/slope/small_steps.h), in the type that they are stored in.
#pragma once

#include "gptq/slope/small_steps.h"
#include "quantizer/methods/method.h"
#include "quantizer/methods/slope/distill_input.h"

namespace thimble {

// The model with its tensors without codes that have exponents rounded to these.
QuantizedModel with_rounded_small(QuantizedModel model, const SmallExponents& exponents);

// By kFisherSequences of the sequences that tuning learns from; none where there are fewer than two. Collective.
constexpr int64_t kFisherSequences = 8;
SmallSteps measured_small_steps(const DistillInput& input, Progress& progress);

}  // namespace thimble
