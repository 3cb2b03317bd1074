// gptq_solver.h: GPTQ (arXiv 2210.17323, algorithm 1) on row-scaled integer grids, the method `trace`, and on NVFP4.
// In: weights (R, K) and their Hessian's factor.  Out: codes, scales and a report.
// R = output rows, K = input columns.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "gptq/factor/hessian_factor.h"
#include "runtime/codes/quantized_model.h"
#include "runtime/tensor/matrix.h"

namespace thimble {

// Clips that are tried, as quantiles of a row's magnitudes; one is chosen for the whole matrix.
constexpr std::array<double, 5> kClipFractions = {0.999, 0.9995, 0.9999, 0.99999, 1.0};

struct GptqReport {
  double clip_fraction = 0;  // the one of kClipFractions that was kept
  double weight_mse = 0;     // mean over all weights of (w - w')^2
  double weighted_loss = 0;  // sum over rows of (w - w') H (w - w')^T, H damped: squared output error per token
  double damping = 0;        // of H, relative to its mean diagonal
  std::vector<int64_t> dead_columns;  // their codes are 0
};

struct GptqResult {
  RowScaledCodes codes;  // columns in their original order
  GptqReport report;
};

// Solves the columns in the factor's order, in blocks of 128, once per clip, and keeps the clip with the least plain
// weight MSE (the first one when equal). Weights must be finite and have the factor's number of columns.
// A row whose scale fp16 cannot hold is an Error (bad input) that names the tensor. Same codes for any thread count.
GptqResult solve_gptq(ConstMatrixView weights, const HessianFactor& factor, int max_code, const std::string& name);

struct Nvfp4GptqResult {
  Nvfp4Codes codes;   // columns in their original order
  GptqReport report;  // clip_fraction is 1: nothing is clipped as a whole
};

// The same with the scales of choose_nvfp4_scales() (nvfp4_grid.h), which are fixed before any column is solved: blocks
// lie along the columns in their original order, the solver's order visits them all over.
Nvfp4GptqResult solve_gptq_nvfp4(ConstMatrixView weights, const HessianFactor& factor, const std::string& name);

}  // namespace thimble
