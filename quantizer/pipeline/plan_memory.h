// plan_memory.h: what a quantization takes of each CUDA device, step by step, before any of it begins.
// In: a request, the checkpoint's config.  Out: memory plans (runtime/base/memory_plan.h), or their DeviceErrors.
#pragma once

#include <vector>

#include "quantizer/checkpoints/model_source.h"
#include "quantizer/pipeline/quantize_request.h"
#include "runtime/base/memory_plan.h"

namespace thimble {

// Of calibration, cross terms and distillation, as far as there are any; none on the CPU.
std::vector<MemoryPlan> plan_memory(const QuantizeRequest& request, const OpenedCheckpoint& source);

}  // namespace thimble
