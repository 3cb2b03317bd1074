// slope_solver.h: GPTQ (arXiv 2210.17323, algorithm 1) on unbounded codes with a step per row and per column, which
// entropy coding makes small (WaterSIC, arXiv 2603.04956): the method `slope`. A column's codes are chosen together by
// error and by rate (trellis_quantizer.h); its errors are passed on as in gptq_solver.h.
// In: weights (R, K), their Hessian's factor, steps.  Out: codes and a report.  Not here: the choice of steps.
// R = output rows, K = input columns.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gptq/factor/hessian_factor.h"
#include "runtime/codes/quantized_model.h"
#include "runtime/tensor/matrix.h"

namespace thimble {

constexpr double kMaxRateWeight = 1e6;

// How one matrix is to be quantized.
struct SlopeGrid {
  int trellis_bits = 0;
  double rate_weight = 0;             // lambda: squared levels that a bit is worth, 0 to kMaxRateWeight
  std::vector<int16_t> row_steps;     // (R) as in SteppedCodes
  std::vector<int16_t> column_steps;  // (K)
};

struct SlopeReport {
  double weight_mse = 0;              // mean over all weights of (w - w')^2
  double weighted_loss = 0;           // sum over rows of (w - w') H (w - w')^T, H damped; without one, of (w - w')^2
  double row_weighted_loss = 0;       // the same with each row times its row weight
  double estimated_bits = 0;          // of all codes, by the rate model
  double damping = 0;                 // of H, relative to its mean diagonal
  std::vector<int64_t> dead_columns;  // their codes are 0
};

struct SlopeResult {
  SteppedCodes codes;  // columns in their original order
  SlopeReport report;
};

// `factor` may be null: no Hessian, every column by itself. `row_weights`: (R) for the report (an output Fisher), or
// none. Same codes for any thread count. A weight that is not finite, or that error feedback takes beyond float64, is
// an Error (bad input) that names the tensor; arguments that do not fit each other are our own mistake (internal).
SlopeResult solve_slope(ConstMatrixView weights, const HessianFactor* factor, const SlopeGrid& grid,
                        std::span<const double> row_weights, const std::string& name);

}  // namespace thimble
