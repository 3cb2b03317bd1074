// sweep_plot.h: a sweep as a gnuplot script: bits per byte over bytes, a curve per method and per label of references.
#pragma once

#include <string>

#include "quantizer/reports/sweep_results.h"

namespace thimble {

// Draws `name`.svg and `name`.png. There must be at least one point that was met, or a reference.
std::string sweep_script(const SweepResults& results, const std::string& name);

}  // namespace thimble
