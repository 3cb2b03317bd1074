// sweep_curves.cpp: see sweep_curves.h.
#include "quantizer/reports/sweep_curves.h"

#include <algorithm>
#include <utility>

namespace thimble {

bool SweepCurve::has_bars() const {
  return std::ranges::all_of(points, [](const Point& point) { return point.standard_error.has_value(); });
}

std::vector<SweepCurve> sweep_curves(const SweepResults& results) {
  std::vector<SweepCurve> curves;
  auto add = [&](const std::string& title, bool is_reference, SweepCurve::Point point) {
    auto found = std::ranges::find_if(
        curves, [&](const SweepCurve& curve) { return curve.title == title && curve.is_reference == is_reference; });
    if (found == curves.end()) found = curves.insert(curves.end(), {title, is_reference, {}});
    found->points.push_back(point);
  };
  for (const SweepPoint& point : results.points)
    if (point.failure.empty())
      add(point.method, false, {point.artifact_bytes, point.bits_per_byte, point.gap_standard_error});
  for (const ReferencePoint& reference : results.references)
    add(reference.label, true, {reference.bytes, reference.bits_per_byte, std::nullopt});
  for (SweepCurve& curve : curves)
    std::ranges::sort(curve.points, {},
                      [](const SweepCurve::Point& point) { return std::pair(point.bytes, point.bits_per_byte); });
  return curves;
}

}  // namespace thimble
