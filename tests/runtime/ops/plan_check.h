// plan_check.h: runs a plan of a pass on names instead of numbers: what lies in every slot after each instruction.
#pragma once

#include "runtime/ops/pass_plan.h"

namespace thimble {

// Expects that instructions find in their places the values and gradients that they read, that they write over nothing
// that is still read, but for operations that may work in place, and that gradients are complete when they are used.
void expect_valid_plan(const Network& network, const PassOptions& options);

}  // namespace thimble
