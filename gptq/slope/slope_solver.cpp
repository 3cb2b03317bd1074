// slope_solver.cpp: see slope_solver.h. The names follow algorithm 1 of the paper: W, E, U = Cholesky(H^-1)^T.
#include "gptq/slope/slope_solver.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "gptq/slope/rate_model.h"
#include "gptq/slope/trellis_quantizer.h"
#include "runtime/base/error.h"
#include "runtime/base/parallel.h"
#include "runtime/cpu/gemm.h"
#include "runtime/tensor/host_device.h"

namespace thimble {
namespace {

// Columns among which each error is passed on at once; to columns further on, errors travel in products.
constexpr int64_t kLeafColumns = 16;
constexpr int64_t kRowsPerProduct = 128;

// What all tasks read.
struct Problem {
  ConstMatrixView weights;
  const HessianFactor* factor;  // null: no feedback
  Trellis trellis;
  double rate_weight;
  std::vector<AxisStep> rows, columns;
  const std::string& name;
};

// The rows [first, first + count) of one segment of the trellis, and one task's columns of them.
class SegmentSolver {
 public:
  // Of columns [first_column, first_column + columns). sums: (count)
  SegmentSolver(const Problem& problem, int64_t first, int64_t count, int64_t first_column, int64_t columns,
                std::span<RowSums> sums)
      : problem_(problem),
        first_(first),
        count_(count),
        first_column_(first_column),
        columns_(columns),
        codes_(static_cast<size_t>(count * columns)),
        sums_(sums),
        quantizer_(problem.trellis, problem.rate_weight, count),
        column_targets_(static_cast<size_t>(count)),
        column_classes_(static_cast<size_t>(count)),
        column_levels_(static_cast<size_t>(count)) {}

  // Algorithm 1. Dead columns are zeros, whose cheapest path is one of zeros.
  void solve_with_feedback() {
    w_ = problem_.factor->ordered(problem_.weights.block_rows(first_, count_));
    solve_columns(0, problem_.weights.cols);
  }

  void solve_without_feedback() {
    std::vector<double> targets(static_cast<size_t>(count_));
    for (int64_t k = first_column_; k < first_column_ + columns_; ++k) {
      for (int64_t r = 0; r < count_; ++r) targets[static_cast<size_t>(r)] = weight(r, k);
      solve_column(k, targets.data(), 1);
    }
  }

  // Into the codes (R, K) of the matrix.
  void store(CodeArray& all) const {
    const auto width = static_cast<size_t>(columns_);
    for (int64_t r = 0; r < count_; ++r)
      all.store(static_cast<size_t>((first_ + r) * problem_.weights.cols + first_column_),
                std::span(codes_).subspan(static_cast<size_t>(r) * width, width));
  }

 private:
  float weight(int64_t r, int64_t k) const { return problem_.weights.row(first_ + r)[k]; }

  // Columns [first, last) in the order of solving, by halves: the first, then what its errors do to the second (the
  // lazy batch update, eq. 4), then that. w_ holds errors where it held the weights of solved columns.
  void solve_columns(int64_t first, int64_t last) {
    if (last - first <= kLeafColumns) return solve_leaf(first, last);
    const int64_t middle = first + round_up((last - first) / 2, kLeafColumns);
    solve_columns(first, middle);
    const ConstMatrixViewF64 u =
        problem_.factor->upper.view().block_rows(first, middle - first).block_cols(middle, last - middle);
    parallel_chunks(count_, kRowsPerProduct, [&](int64_t begin, int64_t end) {
      const MatrixViewF64 w = w_.view().block_rows(begin, end - begin);
      subtract_product(w.block_cols(first, middle - first), u, w.block_cols(middle, last - middle));
    });
    solve_columns(middle, last);
  }

  // A few columns, one after the other (eq. 2), turned so that each is contiguous.
  void solve_leaf(int64_t first, int64_t last) {
    const int64_t width = last - first;
    MatrixF64 columns(width, count_);
    for (int64_t r = 0; r < count_; ++r)
      for (int64_t i = 0; i < width; ++i) columns(i, r) = w_(r, first + i);
    for (int64_t i = 0; i < width; ++i) {
      const double* u = problem_.factor->upper.row(first + i) + first;
      double* errors = columns.row(i);
      solve_column(problem_.factor->order[static_cast<size_t>(first + i)], errors, u[i]);
      for (int64_t j = i + 1; j < width; ++j) {
        double* targets = columns.row(j);
        for (int64_t r = 0; r < count_; ++r) targets[r] -= errors[r] * u[j];
      }
    }
    for (int64_t r = 0; r < count_; ++r)
      for (int64_t i = 0; i < width; ++i) w_(r, first + i) = columns(i, r);
  }

  // Chooses the codes of column k. targets: (count) become errors (t - w') / u.
  void solve_column(int64_t k, double* targets, double u) {
    const auto column = static_cast<size_t>(k);
    const auto [column_inverse, column_size, column_scale] = problem_.columns[column];
    const double inverse_u = 1 / u;
    const AxisStep* rows = problem_.rows.data() + first_;
    for (size_t i = 0; i < column_targets_.size(); ++i) {
      if (!std::isfinite(targets[i]))
        refuse_weight(problem_.weights, first_ + static_cast<int64_t>(i), k, problem_.name);
      column_targets_[i] = targets[i] * (rows[i].inverse * column_inverse);
      column_classes_[i] = rate_class(rows[i].scale + column_scale);
    }
    quantizer_.quantize(column_targets_, column_classes_, column_levels_);
    for (size_t i = 0; i < column_levels_.size(); ++i) {
      const int32_t level = column_levels_[i];
      const float value = static_cast<float>(level) * rows[i].size * column_size;  // as dequantize() does
      const double difference = double{weight(static_cast<int64_t>(i), k)} - value;
      targets[i] = (targets[i] - value) * inverse_u;
      codes_[i * static_cast<size_t>(columns_) + static_cast<size_t>(k - first_column_)] =
          level >> 1;  // level = 2 * code + set
      sums_[i].squared_error += difference * difference;
      sums_[i].weighted_loss += targets[i] * targets[i];
      sums_[i].bits += rate_table().bits(column_classes_[i], level);
    }
  }

  const Problem& problem_;
  int64_t first_, count_, first_column_, columns_;
  std::vector<int32_t> codes_;  // (count, columns)
  std::span<RowSums> sums_;
  TrellisQuantizer quantizer_;
  MatrixF64 w_;  // (count, K)
  // (count) of the column that is being solved
  std::vector<double> column_targets_;  // in levels
  std::vector<uint8_t> column_classes_;
  std::vector<int32_t> column_levels_;
};

}  // namespace

std::vector<AxisStep> axis_steps(std::span<const int16_t> steps, std::span<const float> log2_scales) {
  std::vector<AxisStep> axis;
  for (size_t i = 0; i < steps.size(); ++i)
    axis.push_back({1 / double{step_size(steps[i])}, step_size(steps[i]),
                    log2_scales[i] - static_cast<float>(steps[i]) / kStepsPerOctave});
  return axis;
}

void check_slope_arguments(const StoredMatrixView& weights, size_t hessian_columns, const SlopeGrid& grid,
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

void refuse_weight(const StoredMatrixView& weights, int64_t r, int64_t k, const std::string& name) {
  float weight = 0;
  weights.block_rows(r, 1).block_cols(k, 1).read_row(0, &weight);
  const std::string what = fmt::format("tensor '{}': weight ({}, {}) is {}", name, r, k, weight);
  if (std::isfinite(weight))
    throw Error(ExitCode::kBadInput, what + ", which the errors of other columns take out of float64's range");
  throw Error(ExitCode::kBadInput, what + ", must be finite");
}

SlopeReport slope_report(std::span<const RowSums> sums, const StoredMatrixView& weights, const HessianFactor* factor,
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

SlopeResult solve_slope(ConstMatrixView weights, const HessianFactor* factor, const SlopeGrid& grid,
                        std::span<const double> row_weights, const std::string& name, const WeightScales* known) {
  check_slope_arguments(weights, factor ? factor->order.size() : static_cast<size_t>(weights.cols), grid, row_weights,
                        name);
  const WeightScales scales = known ? *known : fit_weight_scales(weights);
  const Problem problem{weights,
                        factor,
                        Trellis(grid.trellis_bits),
                        grid.rate_weight,
                        axis_steps(grid.row_steps, scales.rows),
                        axis_steps(grid.column_steps, scales.columns),
                        name};
  const auto rows = static_cast<size_t>(weights.rows);
  CodeArray codes;
  codes.resize(rows * static_cast<size_t>(weights.cols));
  std::mutex codes_mutex;

  const int64_t segments = divide_up(weights.rows, kTrellisRows);
  const int64_t parts = factor ? 1 : divide_up(weights.cols, kFreeColumns);
  std::vector<RowSums> sums(static_cast<size_t>(parts) * rows);
  parallel_for(segments * parts, [&](int64_t task) {
    const int64_t part = task / segments, first = task % segments * kTrellisRows;
    const int64_t count = std::min(kTrellisRows, weights.rows - first), column = part * kFreeColumns;
    const auto own =
        std::span(sums).subspan(static_cast<size_t>(part * weights.rows + first), static_cast<size_t>(count));
    const int64_t columns = factor ? weights.cols : std::min(kFreeColumns, weights.cols - column);
    SegmentSolver solver(problem, first, count, column, columns, own);
    if (factor)
      solver.solve_with_feedback();
    else
      solver.solve_without_feedback();
    const std::lock_guard lock(codes_mutex);
    solver.store(codes);
  });
  return {{grid.trellis_bits, std::move(codes), grid.row_steps, grid.column_steps},
          slope_report(sums, weights, factor, row_weights)};
}

}  // namespace thimble
