// gptq_solver.cpp: see gptq_solver.h. The names follow algorithm 1 of the paper: W, Q, E, blocks, U = Cholesky(H^-1)^T.
#include "gptq/trace/gptq_solver.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/parallel.h"
#include "runtime/cpu/gemm.h"

namespace thimble {
namespace {

constexpr int64_t kBlockColumns = 128;
// Rows do not depend on each other. Enough of them per task to make the products between blocks efficient.
constexpr int64_t kSolvedRowsPerTask = 128;

// One row within one block (the inner loop of algorithm 1): rounds column i, divides its error by U_ii and makes up for
// it in the block's later columns (eq. 2). All pointers are to one value per column of the block.
template <typename Row>
void solve_row(const Row& row, const int64_t* order, double* w, double* errors, RoundedWeight* rounded,
               ConstMatrixViewF64 u) {
  for (int64_t i = 0; i < u.cols; ++i) {
    rounded[i] = row.round(row.scale(order[i]), w[i]);
    double error = (w[i] - rounded[i].value) / u.row(i)[i];
    errors[i] = error;
    const double* u_row = u.row(i);
    for (int64_t j = i + 1; j < u.cols; ++j) w[j] -= error * u_row[j];
  }
}

// Algorithm 1 for rows [first, last): fills their part of `codes`, whose scales are set, and of `sums`, (R) zeros.
template <typename Codes>
void solve_rows(ConstMatrixView weights, int64_t first, int64_t last, const HessianFactor& factor, Codes& codes,
                std::span<RowErrors> sums) {
  int64_t columns = weights.cols;
  MatrixF64 w = factor.ordered(weights.block_rows(first, last - first));
  for (int64_t start = 0; start < columns; start += kBlockColumns) {
    int64_t width = std::min(kBlockColumns, columns - start), next = start + width;
    ConstMatrixViewF64 u = factor.upper.view().block_rows(start, width);
    MatrixF64 errors(last - first, width);
    for (int64_t r = first; r < last; ++r) {
      std::array<RoundedWeight, kBlockColumns> rounded;
      const int64_t* order = factor.order.data() + start;
      double* e = errors.row(r - first);
      solve_row(grid_row(codes, r, columns), order, w.row(r - first) + start, e, rounded.data(),
                u.block_cols(start, width));
      for (int64_t i = 0; i < width; ++i) {
        const RoundedWeight& result = rounded[static_cast<size_t>(i)];
        set_code(codes, columns, r, order[i], result.code);
        sums[static_cast<size_t>(r)].add(weights.row(r)[order[i]] - result.value, e[i]);
      }
    }
    // The lazy batch update (eq. 4): the block's errors reach all later columns at once.
    subtract_product(errors, u.block_cols(next, columns - next), w.view().block_cols(next, columns - next));
  }
}

// `candidates`: with their scales and codes of 0.
template <typename Codes>
GptqSolution<Codes> solve(ConstMatrixView weights, const HessianFactor& factor, std::span<const double> clips,
                          std::vector<Codes> candidates) {
  const auto rows = static_cast<size_t>(weights.rows);
  std::vector<RowErrors> errors(candidates.size() * rows);
  int64_t row_tasks = divide_up(weights.rows, kSolvedRowsPerTask);
  parallel_for(row_tasks * std::ssize(candidates), [&](int64_t task) {
    int64_t first = task % row_tasks * kSolvedRowsPerTask, last = std::min(first + kSolvedRowsPerTask, weights.rows);
    const auto c = static_cast<size_t>(task / row_tasks);
    solve_rows(weights, first, last, factor, candidates[c], std::span(errors).subspan(c * rows, rows));
  });
  auto [best, report] = best_candidate(errors, clips, weights, factor);
  return {std::move(candidates[best]), std::move(report)};
}

}  // namespace

void check_columns(ConstMatrixView weights, int64_t hessian_columns, const std::string& name) {
  if (weights.cols != hessian_columns)
    throw Error(ExitCode::kInternal,
                fmt::format("tensor '{}': {} columns, its Hessian has {}", name, weights.cols, hessian_columns));
}

std::pair<size_t, GptqReport> best_candidate(std::span<const RowErrors> errors, std::span<const double> clips,
                                             ConstMatrixView weights, const HessianFactor& factor) {
  const auto rows = static_cast<size_t>(weights.rows);
  std::vector<RowErrors> totals(clips.size());
  for (size_t i = 0; i < errors.size(); ++i) {
    totals[i / rows].squared += errors[i].squared;
    totals[i / rows].weighted += errors[i].weighted;
  }
  const auto best = static_cast<size_t>(std::ranges::min_element(totals, {}, &RowErrors::squared) - totals.begin());
  const auto weight_count = static_cast<double>(std::max<int64_t>(1, weights.rows * weights.cols));
  return {
      best,
      {clips[best], totals[best].squared / weight_count, totals[best].weighted, factor.damping, factor.dead_columns}};
}

GptqResult solve_gptq(ConstMatrixView weights, const HessianFactor& factor, int max_code, const std::string& name) {
  check_columns(weights, static_cast<int64_t>(factor.order.size()), name);
  const std::vector<uint16_t> scales = row_scales(weights, kClipFractions, max_code, name);
  std::vector<RowScaledCodes> candidates;
  for (auto first = scales.begin(); candidates.size() < kClipFractions.size(); first += weights.rows)
    candidates.push_back({max_code,
                          std::vector<int8_t>(static_cast<size_t>(weights.rows * weights.cols)),
                          {first, first + weights.rows}});
  return solve(weights, factor, kClipFractions, std::move(candidates));
}

Nvfp4GptqResult solve_gptq_nvfp4(ConstMatrixView weights, const HessianFactor& factor, const std::string& name) {
  check_columns(weights, static_cast<int64_t>(factor.order.size()), name);
  return solve<Nvfp4Codes>(weights, factor, std::array{1.0}, {choose_nvfp4_scales(weights)});
}

}  // namespace thimble
