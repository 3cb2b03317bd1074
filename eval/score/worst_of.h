// worst_of.h: the larger of two errors, where NaN is the worst of all and is never lost again.
#pragma once

#include <algorithm>
#include <cmath>

namespace thimble {

inline double worst_of(double a, double b) { return std::isnan(a) || std::isnan(b) ? std::nan("") : std::max(a, b); }

}  // namespace thimble
