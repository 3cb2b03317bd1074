// hessian_factor.cpp: see hessian_factor.h.
#include "gptq/factor/hessian_factor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/base/error.h"
#include "runtime/base/parallel.h"

namespace thimble {
namespace {

constexpr double kSmallestDamping = 1e-6;  // tried after 0
constexpr int64_t kRowsPerTask = 64;

std::vector<int64_t> ordered_columns(const SymmetricMatrix& hessian, ColumnOrder by) {
  std::vector<int64_t> order(static_cast<size_t>(hessian.size()));
  std::iota(order.begin(), order.end(), 0);
  auto diagonal = [&](int64_t column) { return hessian(column, column); };
  if (by == ColumnOrder::kDescending) std::ranges::stable_sort(order, std::greater{}, diagonal);
  if (by == ColumnOrder::kAscending) std::ranges::stable_sort(order, std::less{}, diagonal);
  std::stable_partition(order.begin(), order.end(), [&](int64_t column) { return diagonal(column) != 0; });
  return order;
}

// The upper triangle of H + added * I in the given order. A dead column stands apart from all others, so that any
// positive diagonal gives it the same codes; the others are not affected by it.
MatrixF64 damped_and_permuted(const SymmetricMatrix& hessian, const std::vector<int64_t>& order, double added) {
  int64_t columns = hessian.size();
  MatrixF64 damped(columns, columns);
  parallel_chunks(columns, kRowsPerTask, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      int64_t column = order[static_cast<size_t>(i)];
      bool dead = hessian(column, column) == 0;
      damped(i, i) = (dead ? 1 : hessian(column, column)) + added;
      for (int64_t j = i + 1; j < columns; ++j) {
        int64_t other = order[static_cast<size_t>(j)];
        damped(i, j) = dead || hessian(other, other) == 0 ? 0 : hessian(column, other);
      }
    }
  });
  return damped;
}

}  // namespace

MatrixF64 HessianFactor::ordered(ConstMatrixView weights) const {
  MatrixF64 rows(weights.rows, weights.cols);
  const size_t live = order.size() - dead_columns.size();  // a diagonal of 0 sorts last
  for (int64_t r = 0; r < rows.rows(); ++r)
    for (size_t i = 0; i < live; ++i) rows.row(r)[i] = weights.row(r)[order[i]];
  return rows;
}

std::vector<double> HessianFactor::by_column(const std::vector<double>& in_order) const {
  std::vector<double> values(in_order.size());
  for (size_t i = 0; i < in_order.size(); ++i) values[static_cast<size_t>(order[i])] = in_order[i];
  return values;
}

std::vector<double> HessianFactor::upper_diagonal() const {
  std::vector<double> diagonal;
  for (int64_t i = 0; i < upper.rows(); ++i) diagonal.push_back(upper(i, i));
  return by_column(diagonal);
}

HessianFactor unfactored_hessian(const SymmetricMatrix& hessian, double damping, const std::string& layer,
                                 ColumnOrder order) {
  assert(damping >= 0);
  for (double value : hessian.values())
    if (!std::isfinite(value))
      throw Error(ExitCode::kBadInput, fmt::format("layer '{}': Hessian holds {}, must be finite", layer, value));

  for (int64_t i = 0; i < hessian.size(); ++i)
    if (hessian(i, i) < 0)
      throw Error(ExitCode::kBadInput, fmt::format("layer '{}': Hessian diagonal is {} at column {}, must be >= 0",
                                                   layer, hessian(i, i), i));

  HessianFactor factor;
  factor.order = ordered_columns(hessian, order);
  for (int64_t i = 0; i < hessian.size(); ++i)
    if (hessian(i, i) == 0) factor.dead_columns.push_back(i);
  factor.damping = damping;
  return factor;
}

double raised_damping(double damping, int attempt, const std::string& layer) {
  if (attempt == kMaxDampingAttempts)
    throw Error(ExitCode::kBadInput,
                fmt::format("layer '{}': Hessian is not positive definite, even damped by {} x its mean diagonal",
                            layer, damping));
  return damping == 0 ? kSmallestDamping : damping * 10;
}

HessianFactor factor_hessian(const SymmetricMatrix& hessian, double damping, const std::string& layer,
                             ColumnOrder order) {
  HessianFactor factor = unfactored_hessian(hessian, damping, layer, order);
  for (int attempt = 1;; ++attempt) {
    double added = factor.damping * hessian.mean_diagonal();
    if (auto upper = inverse_upper_cholesky(damped_and_permuted(hessian, factor.order, added))) {
      factor.upper = std::move(*upper);
      return factor;
    }
    factor.damping = raised_damping(factor.damping, attempt, layer);
  }
}

}  // namespace thimble
