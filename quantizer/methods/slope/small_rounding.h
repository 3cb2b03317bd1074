// small_rounding.h: small tensors of a quantized model rounded to the steps that their own loss allows
// (gptq/slope/small_steps.h), in the type that they are stored in.
#pragma once

#include "gptq/slope/small_steps.h"
#include "quantizer/methods/method.h"
#include "quantizer/methods/slope/distill_input.h"

namespace thimble {

// The model with its tensors without codes that have exponents rounded to these; but for one that its type could not
// hold then.
QuantizedModel with_rounded_small(QuantizedModel model, const SmallExponents& exponents);

// Of the original's small tensors, by the first of the sequences that tuning learns from; of none where these are too
// few to tell. Collective.
constexpr int64_t kFisherSequences = 8, kLeastFisherSequences = 4;
SmallFisher measured_small_fisher(const DistillInput& input, Progress& progress);

// Of the tensors without codes in `fixed`: of small ones by `fisher`, of matrices that are too small for codes by their
// losses: mean of the row weights times mean of H's diagonal.
SmallSteps small_steps(SmallFisher fisher, const std::map<std::string, MatrixLoss>& losses,
                       const QuantizedModel& fixed);

}  // namespace thimble
