// gptq_solver.cpp: see gptq_solver.h. The names follow algorithm 1 of the paper: W, Q, E, blocks, U = Cholesky(H^-1)^T.
#include "gptq/trace/gptq_solver.h"

#include <fmt/format.h>

#include <algorithm>

#include "gptq/trace/grid.h"
#include "gptq/trace/nvfp4_grid.h"
#include "runtime/base/error.h"
#include "runtime/base/parallel.h"
#include "runtime/cpu/gemm.h"
#include "runtime/tensor/dtype.h"

namespace thimble {
namespace {

constexpr int64_t kBlockColumns = 128;
// Rows do not depend on each other. Enough of them per task to make the products between blocks efficient.
constexpr int64_t kRowsPerTask = 128;

// A weight rounded to a grid.
struct Rounded {
  int8_t code;
  double value;
};

// Both grids have rows that round a weight of (original) column k, and keep() its code.
struct RowScaledGrid {
  struct Row {
    double scale;
    int max_code;
    Rounded round(int64_t, double weight) const {
      const int8_t code = nearest_code(weight, scale, max_code);
      return {code, code * scale};
    }
  };
  RowScaledCodes codes;
  Row row(int64_t r) const { return {float_from_fp16(codes.row_scales[static_cast<size_t>(r)]), codes.max_code}; }
  void keep(int64_t r, int64_t k, int64_t columns, int8_t code) {
    codes.codes[static_cast<size_t>(r * columns + k)] = code;
  }
};

struct Nvfp4Grid {
  struct Row {
    const uint8_t* scales;
    float tensor_scale;
    Rounded round(int64_t k, double weight) const {
      const Nvfp4BlockGrid grid{float_from_ue4m3(scales[k / kNvfp4Block]), tensor_scale};
      const uint8_t code = grid.nearest(weight);
      return {static_cast<int8_t>(code), double{grid.value(code)}};
    }
  };
  Nvfp4Codes codes;
  int64_t blocks, row_bytes;
  Row row(int64_t r) const { return {codes.block_scales.data() + r * blocks, codes.tensor_scale}; }
  void keep(int64_t r, int64_t k, int64_t, int8_t code) {
    set_nvfp4_code(codes, row_bytes, r, k, static_cast<uint8_t>(code));
  }
};

// The solution on one grid.
template <typename Grid>
struct Candidate {
  Grid grid;
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

// One row within one block (the inner loop of algorithm 1): rounds column i, divides its error by U_ii and makes up for
// it in the block's later columns (eq. 2). All pointers are to one value per column of the block.
template <typename Row>
void solve_row(const Row& row, const int64_t* order, double* w, double* errors, Rounded* rounded,
               ConstMatrixViewF64 u) {
  for (int64_t i = 0; i < u.cols; ++i) {
    rounded[i] = row.round(order[i], w[i]);
    double error = (w[i] - rounded[i].value) / u.row(i)[i];
    errors[i] = error;
    const double* u_row = u.row(i);
    for (int64_t j = i + 1; j < u.cols; ++j) w[j] -= error * u_row[j];
  }
}

// Algorithm 1 for rows [first, last): fills their part of `out`, whose scales are set.
template <typename Grid>
void solve_rows(ConstMatrixView weights, int64_t first, int64_t last, const HessianFactor& factor,
                Candidate<Grid>& out) {
  int64_t columns = weights.cols;
  MatrixF64 w = permuted_rows(weights, first, last, factor);
  for (int64_t start = 0; start < columns; start += kBlockColumns) {
    int64_t width = std::min(kBlockColumns, columns - start), next = start + width;
    ConstMatrixViewF64 u = factor.upper.view().block_rows(start, width);
    MatrixF64 errors(last - first, width);
    for (int64_t r = first; r < last; ++r) {
      std::array<Rounded, kBlockColumns> rounded;
      const int64_t* order = factor.order.data() + start;
      double* e = errors.row(r - first);
      solve_row(out.grid.row(r), order, w.row(r - first) + start, e, rounded.data(), u.block_cols(start, width));
      for (int64_t i = 0; i < width; ++i) {
        const Rounded& result = rounded[static_cast<size_t>(i)];
        double difference = weights.row(r)[order[i]] - result.value;
        out.grid.keep(r, order[i], columns, result.code);
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

void check_columns(ConstMatrixView weights, const HessianFactor& factor, const std::string& name) {
  if (static_cast<size_t>(weights.cols) != factor.order.size())
    throw Error(ExitCode::kInternal,
                fmt::format("tensor '{}': {} columns, its Hessian has {}", name, weights.cols, factor.order.size()));
}

template <typename Grid>
GptqReport report_of(const Candidate<Grid>& solved, double clip_fraction, ConstMatrixView weights,
                     const HessianFactor& factor) {
  double weight_count = static_cast<double>(std::max<int64_t>(1, weights.rows * weights.cols));
  return {clip_fraction, sum(solved.squared_errors) / weight_count, sum(solved.weighted_losses), factor.damping,
          factor.dead_columns};
}

}  // namespace

GptqResult solve_gptq(ConstMatrixView weights, const HessianFactor& factor, int max_code, const std::string& name) {
  check_columns(weights, factor, name);
  auto rows = static_cast<size_t>(weights.rows);
  std::array<Candidate<RowScaledGrid>, kClipFractions.size()> candidates;
  for (size_t c = 0; c < candidates.size(); ++c)
    candidates[c] = {{{max_code, std::vector<int8_t>(rows * static_cast<size_t>(weights.cols)),
                       row_scales(weights, kClipFractions[c], max_code, name)}},
                     std::vector<double>(rows),
                     std::vector<double>(rows)};

  int64_t row_tasks = (weights.rows + kRowsPerTask - 1) / kRowsPerTask;
  parallel_for(row_tasks * static_cast<int64_t>(candidates.size()), [&](int64_t task) {
    int64_t first = task % row_tasks * kRowsPerTask, last = std::min(first + kRowsPerTask, weights.rows);
    solve_rows(weights, first, last, factor, candidates[static_cast<size_t>(task / row_tasks)]);
  });

  auto best = std::ranges::min_element(candidates, {}, [](const auto& c) { return sum(c.squared_errors); });
  GptqReport report = report_of(*best, kClipFractions[static_cast<size_t>(best - candidates.begin())], weights, factor);
  return {std::move(best->grid.codes), std::move(report)};
}

Nvfp4GptqResult solve_gptq_nvfp4(ConstMatrixView weights, const HessianFactor& factor, const std::string& name) {
  check_columns(weights, factor, name);
  auto rows = static_cast<size_t>(weights.rows);
  Candidate<Nvfp4Grid> solved{{choose_nvfp4_scales(weights), nvfp4_blocks(weights.cols), nvfp4_row_bytes(weights.cols)},
                              std::vector<double>(rows),
                              std::vector<double>(rows)};
  parallel_chunks(weights.rows, kRowsPerTask,
                  [&](int64_t first, int64_t last) { solve_rows(weights, first, last, factor, solved); });
  GptqReport report = report_of(solved, 1, weights, factor);
  return {std::move(solved.grid.codes), std::move(report)};
}

}  // namespace thimble
