// fusion_plan.h: where the values between composites lie. Internal to fusion.cpp.
#pragma once

#include "runtime/ops/fusion.h"

namespace thimble {

// In: the tables, composites (in order), head and squares of `fusion`.  Out: everything else in it.
void plan_places(const Network& network, Fusion& fusion);

}  // namespace thimble
