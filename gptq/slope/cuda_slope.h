// cuda_slope.h: the method `slope` for many layers on one CUDA device, the counterpart of factor_hessian() and
// solve_slope(). In: Hessians and weights in host memory.  Out: what the CPU's solver returns.
// A code differs from the CPU's only where a choice lies within rounding of a tie (and then those that follow from it).
// R = output rows, K = input columns
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "gptq/factor/hessian_factor.h"
#include "gptq/slope/slope_solver.h"
#include "gptq/statistics/symmetric_matrix.h"
#include "runtime/device/device.h"
#include "runtime/tensor/matrix.h"

namespace thimble {

// One matrix to solve.
struct SlopeJob {
  std::string name;         // for errors
  ConstMatrixView weights;  // (R, K), finite
  const SymmetricMatrix* hessian = nullptr;
  double damping = 0;  // as in factor_hessian()
  ColumnOrder order = ColumnOrder::kDescending;
  std::span<const double> row_weights = {};  // (R) for the report, or none
};

// The grid of a job, from the diagonal of U (K, by column) of its factored Hessian. Called from any thread.
using ChooseGrid = std::function<SlopeGrid(size_t job, const std::vector<double>& upper_diagonal)>;
// Sees that a job is done, one at a time but from any thread.
using OnSlopeSolved = std::function<void(size_t job)>;

// results[i] solves jobs[i]: the same bits whatever is solved in the same call, on every device of one model. Fewer are
// solved at a time where little memory may be used.
// Errors are those of factor_hessian() and solve_slope(); a device that is missing, fails or has too little memory, and
// a build without CUDA, are a DeviceError.
std::vector<SlopeResult> solve_slope_cuda(std::span<const SlopeJob> jobs, const ChooseGrid& choose_grid,
                                          const CudaPlace& place, const OnSlopeSolved& on_solved = {});

}  // namespace thimble
