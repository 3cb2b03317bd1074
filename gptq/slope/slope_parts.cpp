// slope_parts.cpp: see slope_parts.h.
#include "gptq/slope/slope_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "runtime/base/error.h"
#include "runtime/codes/trellis.h"

namespace thimble {

AxisSteps::AxisSteps(std::span<const int16_t> steps, std::span<const float> log2_scales) {
  for (size_t i = 0; i < steps.size(); ++i) {
    sizes.push_back(step_size(steps[i]));
    scales.push_back(log2_scales[i] - static_cast<float>(steps[i]) / kStepsPerOctave);
  }
}

void check_slope_arguments(ConstMatrixView weights, size_t hessian_columns, const SlopeGrid& grid,
                           std::span<const double> row_weights, const std::string& name) {
  const auto rows = static_cast<size_t>(weights.rows), columns = static_cast<size_t>(weights.cols);
  auto in_range = [](int step) { return std::abs(step) <= kMaxStep; };
  if (hessian_columns != columns || grid.row_steps.size() != rows || grid.column_steps.size() != columns ||
      (!row_weights.empty() && row_weights.size() != rows))
    throw Error(ExitCode::kInternal, fmt::format("tensor '{}': steps, row weights or Hessian are not those of {} x {}",
                                                 name, rows, columns));
  if (!Trellis::has_bits(grid.trellis_bits) || !(grid.rate_weight >= 0 && grid.rate_weight <= kMaxRateWeight) ||
      !std::ranges::all_of(grid.row_steps, in_range) || !std::ranges::all_of(grid.column_steps, in_range))
    throw Error(ExitCode::kInternal, fmt::format("tensor '{}': trellis bits {}, rate weight {} or a step out of range",
                                                 name, grid.trellis_bits, grid.rate_weight));
}

void refuse_weight(ConstMatrixView weights, int64_t r, int64_t k, const std::string& name) {
  const float weight = weights.row(r)[k];
  const std::string what = fmt::format("tensor '{}': weight ({}, {}) is {}", name, r, k, weight);
  if (std::isfinite(weight))
    throw Error(ExitCode::kBadInput, what + ", which the errors of other columns take out of float64's range");
  throw Error(ExitCode::kBadInput, what + ", must be finite");
}

SlopeReport slope_report(std::span<const RowSums> sums, ConstMatrixView weights, const HessianFactor* factor,
                         std::span<const double> row_weights) {
  SlopeReport report;
  const auto rows = static_cast<size_t>(weights.rows);
  double squared_error = 0;
  for (size_t i = 0; i < sums.size(); ++i) {
    squared_error += sums[i].squared_error;
    report.weighted_loss += sums[i].weighted_loss;
    report.row_weighted_loss += sums[i].weighted_loss * (row_weights.empty() ? 1 : row_weights[i % rows]);
    report.estimated_bits += sums[i].bits;
  }
  const int64_t weight_count = weights.rows * weights.cols;
  report.weight_mse = squared_error / static_cast<double>(std::max<int64_t>(1, weight_count));
  if (factor) {
    report.damping = factor->damping;
    report.dead_columns = factor->dead_columns;
  }
  return report;
}

}  // namespace thimble
