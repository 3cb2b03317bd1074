// gptq_solver.cpp: see gptq_solver.h. The names follow algorithm 1 of the paper: W, Q, E, blocks, U = Cholesky(H^-1)^T.
#include "gptq/gptq_solver.h"

#include <fmt/format.h>

#include <algorithm>

#include "gptq/grid.h"
#include "runtime/dtype.h"
#include "runtime/error.h"
#include "runtime/gemm.h"
#include "runtime/parallel.h"

namespace thimble {
namespace {

constexpr int64_t kBlockColumns = 128;
// Rows do not depend on each other. Enough of them per task to make the products between blocks efficient.
constexpr int64_t kRowsPerTask = 128;

// The solution for one clip.
struct Candidate {
  RowScaledCodes codes;
  std::vector<double> squared_errors;   // (R) sum over columns of (w - w')^2
  std::vector<double> weighted_losses;  // (R) sum over columns of E^2
};

// The weights of rows [first, last), float64, columns in the order they are solved; dead columns are 0.
MatrixF64 permuted_rows(ConstMatrixView weights, int64_t first, int64_t last, const HessianFactor& factor) {
  MatrixF64 rows(last - first, weights.cols);
  for (int64_t r = 0; r < rows.rows(); ++r)
    for (int64_t i = 0; i < rows.cols(); ++i) rows(r, i) = weights.row(first + r)[factor.order[static_cast<size_t>(i)]];
  size_t live = factor.order.size() - factor.dead_columns.size();  // a diagonal of 0 sorts last
  for (int64_t r = 0; r < rows.rows(); ++r) std::fill(rows.row(r) + live, rows.row(r) + rows.cols(), 0.0);
  return rows;
}

// One row within one block (the inner loop of algorithm 1): rounds column i, divides its error by U_ii and
// makes up for it in the block's later columns (eq. 2). w, errors and codes have one value per column of the block.
void solve_row(double* w, double* errors, int8_t* codes, ConstMatrixViewF64 u, double scale, int max_code) {
  for (int64_t i = 0; i < u.cols; ++i) {
    codes[i] = nearest_code(w[i], scale, max_code);
    double error = (w[i] - codes[i] * scale) / u.row(i)[i];
    errors[i] = error;
    const double* u_row = u.row(i);
    for (int64_t j = i + 1; j < u.cols; ++j) w[j] -= error * u_row[j];
  }
}

// Algorithm 1 for rows [first, last): fills their part of `out`, whose scales are set.
void solve_rows(ConstMatrixView weights, int64_t first, int64_t last, const HessianFactor& factor, Candidate& out) {
  int64_t columns = weights.cols;
  MatrixF64 w = permuted_rows(weights, first, last, factor);
  for (int64_t start = 0; start < columns; start += kBlockColumns) {
    int64_t width = std::min(kBlockColumns, columns - start), next = start + width;
    ConstMatrixViewF64 u = factor.upper.view().block_rows(start, width);
    MatrixF64 errors(last - first, width);
    for (int64_t r = first; r < last; ++r) {
      std::array<int8_t, kBlockColumns> codes;
      double scale = float_from_fp16(out.codes.row_scales[static_cast<size_t>(r)]);
      double* e = errors.row(r - first);
      solve_row(w.row(r - first) + start, e, codes.data(), u.block_cols(start, width), scale, out.codes.max_code);
      for (int64_t i = 0; i < width; ++i) {
        int64_t column = factor.order[static_cast<size_t>(start + i)];
        double difference = weights.row(r)[column] - codes[static_cast<size_t>(i)] * scale;
        out.codes.codes[static_cast<size_t>(r * columns + column)] = codes[static_cast<size_t>(i)];
        out.squared_errors[static_cast<size_t>(r)] += difference * difference;
        out.weighted_losses[static_cast<size_t>(r)] += e[i] * e[i];
      }
    }
    // The lazy batch update (eq. 4): the block's errors reach all later columns at once.
    subtract_product(errors, u.block_cols(next, columns - next), w.view().block_cols(next, columns - next));
  }
}

// Serial, so that the order of the additions is fixed.
double sum(const std::vector<double>& values) {
  double total = 0;
  for (double value : values) total += value;
  return total;
}

}  // namespace

GptqResult solve_gptq(ConstMatrixView weights, const HessianFactor& factor, int max_code, const std::string& name) {
  if (static_cast<size_t>(weights.cols) != factor.order.size())
    throw Error(ExitCode::kInternal,
                fmt::format("tensor '{}': {} columns, its Hessian has {}", name, weights.cols, factor.order.size()));
  auto rows = static_cast<size_t>(weights.rows);
  std::array<Candidate, kClipFractions.size()> candidates;
  for (size_t c = 0; c < candidates.size(); ++c)
    candidates[c] = {{max_code, std::vector<int8_t>(rows * static_cast<size_t>(weights.cols)),
                      row_scales(weights, kClipFractions[c], max_code, name)},
                     std::vector<double>(rows),
                     std::vector<double>(rows)};

  int64_t row_tasks = (weights.rows + kRowsPerTask - 1) / kRowsPerTask;
  parallel_for(row_tasks * static_cast<int64_t>(candidates.size()), [&](int64_t task) {
    int64_t first = task % row_tasks * kRowsPerTask, last = std::min(first + kRowsPerTask, weights.rows);
    solve_rows(weights, first, last, factor, candidates[static_cast<size_t>(task / row_tasks)]);
  });

  auto best = std::ranges::min_element(candidates, {}, [](const Candidate& c) { return sum(c.squared_errors); });
  double weight_count = static_cast<double>(std::max<int64_t>(1, weights.rows * weights.cols));
  GptqReport report{kClipFractions[static_cast<size_t>(best - candidates.begin())],
                    sum(best->squared_errors) / weight_count, sum(best->weighted_losses), factor.damping,
                    factor.dead_columns};
  return {std::move(best->codes), std::move(report)};
}

}  // namespace thimble
