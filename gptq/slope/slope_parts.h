// slope_parts.h: what the solvers of the method `slope` share, on the CPU and on devices.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "gptq/slope/slope_solver.h"

namespace thimble {

// A step of each row or column as a factor, and log2 of the weights' scale relative to it.
struct AxisSteps {
  std::vector<float> sizes, scales;

  AxisSteps(std::span<const int16_t> steps, std::span<const float> log2_scales);
};

// Over the codes of one row.
struct RowSums {
  double squared_error = 0;  // of the weights
  double weighted_loss = 0;
  double bits = 0;
};

// Throws when arguments of solve_slope() do not fit each other. `hessian_columns`: K of the Hessian.
void check_slope_arguments(ConstMatrixView weights, size_t hessian_columns, const SlopeGrid& grid,
                           std::span<const double> row_weights, const std::string& name);

// Throws that weight (r, k) cannot be quantized: it is not finite, or the errors of others made it so.
[[noreturn]] void refuse_weight(ConstMatrixView weights, int64_t r, int64_t k, const std::string& name);

// sums: (any number of times R). Serial, so that the order of the additions is fixed.
SlopeReport slope_report(std::span<const RowSums> sums, ConstMatrixView weights, const HessianFactor* factor,
                         std::span<const double> row_weights);

}  // namespace thimble
