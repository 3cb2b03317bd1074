// prune.h: makes a quantized model smaller by setting its cheapest codes of magnitude 1 to 0.
// In: a model whose plan has GPTQ tensors.  Out: the same model with `count` codes set to 0.
// Not here: the search for the count that fits a byte budget.
#pragma once

#include <cstdint>

#include "gptq/trace/plan.h"
#include "runtime/codes/quantized_model.h"

namespace thimble {

// Codes +-1 in the tensors that `plan` solves by GPTQ.
int64_t count_prunable(const QuantizedModel& model, const Plan& plan);

// Sets the first `count` of these codes to 0, in ascending squared scale (the squared error that it adds), then by
// tensor name, then by position. Returns how many were set: less than `count` when there are no more.
int64_t prune_smallest(QuantizedModel& model, const Plan& plan, int64_t count);

}  // namespace thimble
