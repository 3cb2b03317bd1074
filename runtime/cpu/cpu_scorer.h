// cpu_scorer.h: Scorer on the CPU, in any numeric mode, one window after another: the reference for every device.
#pragma once

#include <memory>

#include "runtime/ops/numeric_policy.h"
#include "runtime/ops/scorer.h"
#include "runtime/ops/weights.h"

namespace thimble {

std::unique_ptr<Scorer> make_cpu_scorer(std::shared_ptr<const Weights> weights, Numerics numerics, int64_t context);

}  // namespace thimble
