// statistics_sum.h: the statistics of a calibration set from those of its parts (hessian_sum.h), so that parts can be
// collected apart.
// In: CalibrationStatistics of the parts, in order.  Out: those of the whole.
#pragma once

#include <tuple>

#include "gptq/statistics/fisher.h"
#include "gptq/statistics/hessian_sum.h"

namespace thimble {

// Means are weighted by the tokens behind them, as HessianSum does, in float64; counts are added. At least one part.
class StatisticsSum {
 public:
  // A part whose names or sizes are not the first one's is an Error.
  void add(const CalibrationStatistics& part);

  // The sum is spent afterwards.
  CalibrationStatistics finish() &&;

  // What it consists of, for who keeps it and reads it back.
  friend auto members(StatisticsSum& sum) { return std::tie(sum.hessians_, sum.head_, sum.sums_, sum.is_first_); }

 private:
  HessianSum hessians_, head_;
  LossStatistics sums_;  // mean_square holds sums
  bool is_first_ = true;
};

}  // namespace thimble
