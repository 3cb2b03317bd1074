// quantize_plans.h: what a quantization takes of memory, step by step, known before any of it begins.
// In: request, checkpoint.  Out: plans, of each CUDA device or, where it is the CPU that computes, of the host.
#pragma once

#include <string>
#include <vector>

#include "quantizer/checkpoints/model_source.h"
#include "quantizer/pipeline/quantize_request.h"
#include "runtime/base/memory_plan.h"

namespace thimble {

// Of a CUDA device for calibration, cross terms and distillation, as far as there are any; of the host for these and
// for solving. `layers`: the names that will have Hessians; `ranks`: how many processes share the work.
std::vector<MemoryPlan> plan_memory(const QuantizeRequest& request, OpenedCheckpoint& source,
                                    const std::vector<std::string>& layers, int ranks);

}  // namespace thimble
