// sensitivity.h: how much a layer's output suffers from errors in its weights, by the method `trace`.
// In: Hessians.  Out: one number per layer; only their order matters (plan.h).
#pragma once

#include <map>
#include <string>

#include "gptq/statistics/hessian.h"

namespace thimble {

// The trace of damped_hessian_per_sequence(): an error of equal variance in every weight of an output row changes the
// squared output in proportion to it.
double trace_sensitivity(const Hessian& hessian);

std::map<std::string, double> trace_sensitivities(const HessianSet& hessians);

}  // namespace thimble
