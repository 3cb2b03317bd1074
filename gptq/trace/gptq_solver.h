// gptq_solver.h: GPTQ (arXiv 2210.17323, algorithm 1) on row-scaled integer grids, the method `trace`, and on NVFP4.
// In: weights (R, K) and their Hessian's factor, or on a CUDA device many layers with their Hessians.  Out: codes,
// scales and a report. R = output rows, K = input columns.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gptq/factor/hessian_factor.h"
#include "gptq/trace/grid.h"
#include "runtime/codes/quantized_model.h"
#include "runtime/device/device.h"
#include "runtime/tensor/matrix.h"

namespace thimble {

// Clips that are tried, as quantiles of a row's magnitudes; one is chosen for the whole matrix.
constexpr std::array<double, 5> kClipFractions = {0.999, 0.9995, 0.9999, 0.99999, 1.0};

struct GptqReport {
  double clip_fraction = 0;  // the one of kClipFractions that was kept; 1 in NVFP4: nothing is clipped as a whole
  double weight_mse = 0;     // mean over all weights of (w - w')^2
  double weighted_loss = 0;  // sum over rows of (w - w') H (w - w')^T, H damped: squared output error per token
  double damping = 0;        // of H, relative to its mean diagonal
  std::vector<int64_t> dead_columns;  // their codes are 0
};

template <typename Codes>
struct GptqSolution {
  Codes codes;  // columns in their original order
  GptqReport report;
};
using GptqResult = GptqSolution<RowScaledCodes>;
using Nvfp4GptqResult = GptqSolution<Nvfp4Codes>;

// Solves the columns in the factor's order, in blocks of 128, once per clip, and keeps the clip with the least plain
// weight MSE (the first one when equal). Weights must be finite and have the factor's number of columns.
// A row whose scale fp16 cannot hold is an Error (bad input) that names the tensor. Same codes for any thread count.
GptqResult solve_gptq(ConstMatrixView weights, const HessianFactor& factor, int max_code, const std::string& name);

// The same with the scales of choose_nvfp4_scales() (grid.h), which are fixed before any column is solved: blocks
// lie along the columns in their original order, the solver's order visits them all over.
Nvfp4GptqResult solve_gptq_nvfp4(ConstMatrixView weights, const HessianFactor& factor, const std::string& name);

// One matrix to solve on a device.
struct GptqJob {
  std::string name;         // for errors
  ConstMatrixView weights;  // (R, K), finite, K > 0
  int max_code = 0;         // as in solve_gptq(); NVFP4 does not read it
  const StoredHessian* hessian = nullptr;
};

// Takes every result as soon as it is known, in no fixed order and from any thread.
template <typename Codes>
using OnGptqSolved = std::function<void(size_t job, GptqSolution<Codes> result)>;

// Solves `jobs` on one CUDA device; each Hessian is factored once, with `damping` as in factor_hessian(), whatever
// number of jobs point to it. In host memory, out to host memory: what the CPU's solver returns. A code differs
// only where an argument lies within rounding of a tie between two codes (and then those that follow in its row);
// scales are the CPU's, bit for bit; errors are summed in the CPU's order.
// Results are the same bits whatever is solved in the same call, on every device of one model. Fewer are solved at a
// time where little memory may be used.
// Errors are those of factor_hessian() and solve_gptq(); a device that is missing, fails or has too little memory, and
// a build without CUDA, are a DeviceError.
void solve_gptq_cuda(std::span<const GptqJob> jobs, double damping, const CudaPlace& place,
                     const OnGptqSolved<RowScaledCodes>& on_solved);
void solve_gptq_nvfp4_cuda(std::span<const GptqJob> jobs, double damping, const CudaPlace& place,
                           const OnGptqSolved<Nvfp4Codes>& on_solved);

// What the solvers on the CPU and on devices share.

// Of one row, summed in the order of columns.
struct RowErrors {
  double squared = 0;   // of (w - w')^2
  double weighted = 0;  // of E^2

  THIMBLE_HOST_DEVICE void add(double difference, double error) {
    squared = add_square(squared, difference);
    weighted = add_square(weighted, error);
  }
};

// Of the candidates, one for each of `clips`, the one to keep, and the report on it. `errors`: (candidates, R). Serial,
// so that the order of the additions is fixed.
std::pair<size_t, GptqReport> best_candidate(std::span<const RowErrors> errors, std::span<const double> clips,
                                             ConstMatrixView weights, const HessianFactor& factor);

// An Error (internal) where the weights have other columns than their Hessian.
void check_columns(ConstMatrixView weights, int64_t hessian_columns, const std::string& name);

}  // namespace thimble
