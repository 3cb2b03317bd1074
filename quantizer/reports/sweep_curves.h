// sweep_curves.h: the points of a sweep as curves, for its plots: one for each method and each label of references.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "quantizer/reports/sweep_results.h"

namespace thimble {

struct SweepCurve {
  struct Point {
    uint64_t bytes = 0;
    double bits_per_byte = 0;
    std::optional<double> standard_error;  // of the gap to the original
  };
  std::string title;
  bool is_reference = false;
  std::vector<Point> points;  // by bytes

  // Are standard errors known of all points?
  bool has_bars() const;
};

// Of the points that were met, methods first.
std::vector<SweepCurve> sweep_curves(const SweepResults& results);

}  // namespace thimble
