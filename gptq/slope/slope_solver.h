// slope_solver.h: GPTQ (arXiv 2210.17323, algorithm 1) on unbounded codes with a step per row and per column, which
// entropy coding makes small (WaterSIC, arXiv 2603.04956): the method `slope`. A column's codes are chosen together by
// error and by rate (trellis_quantizer.h); its errors are passed on as in gptq_solver.h.
// In: weights (R, K), their Hessian's factor, steps; or on a CUDA device many layers with their Hessians.  Out: codes
// and a report.  Not here: the choice of steps. R = output rows, K = input columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "gptq/factor/hessian_factor.h"
#include "gptq/slope/rate_model.h"
#include "runtime/codes/quantized_model.h"
#include "runtime/device/device.h"
#include "runtime/tensor/matrix.h"
#include "runtime/tensor/stored_matrix.h"

namespace thimble {

constexpr double kMaxRateWeight = 1e6;
// Without a Hessian columns do not depend on each other: those of one task.
constexpr int64_t kFreeColumns = 128;

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
// `scales`: those of the weights, where they are known already.
SlopeResult solve_slope(ConstMatrixView weights, const HessianFactor* factor, const SlopeGrid& grid,
                        std::span<const double> row_weights, const std::string& name,
                        const WeightScales* scales = nullptr);

// One matrix to solve on a device.
struct SlopeJob {
  FactorJob factor;                          // of (K, K), with the name for errors
  StoredMatrixView weights;                  // (R, K) of F32, F16 or BF16, finite, K > 0
  std::span<const double> row_weights = {};  // (R) for the report, or none
  const WeightScales* scales = nullptr;      // of the weights, where they are known already
};

// The grid of a job, from the diagonal of U (K, by column) of its factored Hessian. Called from any thread.
using ChooseGrid = std::function<SlopeGrid(size_t job, const std::vector<double>& upper_diagonal)>;
// Takes every result as soon as it is known, in no fixed order and from any thread.
using OnSlopeSolved = std::function<void(size_t job, SlopeResult result)>;

// factor_hessian() and solve_slope() for many layers on one CUDA device. A code differs from the CPU's only where a
// choice lies within rounding of a tie (and then those that follow from it). Results are the same bits whatever is
// solved in the same call, on every device of one model. Fewer are solved at a time where little memory may be used.
// Errors are those of factor_hessian() and solve_slope(); a device that is missing, fails or has too little memory, and
// a build without CUDA, are a DeviceError.
void solve_slope_cuda(std::span<const SlopeJob> jobs, const ChooseGrid& choose_grid, const CudaPlace& place,
                      const OnSlopeSolved& on_solved);

// What the solvers on the CPU and on devices share.

// The step of a row or column as a factor, its inverse, and log2 of the weights' scale relative to it.
struct AxisStep {
  double inverse;
  float size, scale;
};
std::vector<AxisStep> axis_steps(std::span<const int16_t> steps, std::span<const float> log2_scales);

// Over the codes of one row.
struct RowSums {
  double squared_error = 0;  // of the weights
  double weighted_loss = 0;
  double bits = 0;
};

// Throws when arguments of solve_slope() do not fit each other. `hessian_columns`: K of the Hessian.
void check_slope_arguments(const StoredMatrixView& weights, size_t hessian_columns, const SlopeGrid& grid,
                           std::span<const double> row_weights, const std::string& name);

// Throws that weight (r, k) cannot be quantized: it is not finite, or the errors of others made it so.
[[noreturn]] void refuse_weight(const StoredMatrixView& weights, int64_t r, int64_t k, const std::string& name);

// sums: (any number of times R). Serial, so that the order of the additions is fixed.
SlopeReport slope_report(std::span<const RowSums> sums, const StoredMatrixView& weights, const HessianFactor* factor,
                         std::span<const double> row_weights);

}  // namespace thimble
