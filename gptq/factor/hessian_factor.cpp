// hessian_factor.cpp: see hessian_factor.h. The Cholesky factor comes from a blocked factorisation and the inversion of
// its lower triangular factor: Eigen's on blocks, runtime/cpu/gemm.h between them.
#include "gptq/factor/hessian_factor.h"

#include <fmt/format.h>

#include <Eigen/Cholesky>
#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <numeric>

#include "runtime/base/error.h"
#include "runtime/base/parallel.h"
#include "runtime/cpu/gemm.h"

namespace thimble {
namespace {

constexpr double kSmallestDamping = 1e-6;  // tried after 0
constexpr int64_t kFactorRowsPerTask = 64;

std::vector<int64_t> ordered_columns(const std::vector<double>& diagonal, ColumnOrder by) {
  std::vector<int64_t> order(diagonal.size());
  std::iota(order.begin(), order.end(), 0);
  auto value = [&](int64_t column) { return diagonal[static_cast<size_t>(column)]; };
  if (by == ColumnOrder::kDescending) std::ranges::stable_sort(order, std::greater{}, value);
  if (by == ColumnOrder::kAscending) std::ranges::stable_sort(order, std::less{}, value);
  std::stable_partition(order.begin(), order.end(), [&](int64_t column) { return value(column) != 0; });
  return order;
}

void require_finite_value(double value, const std::string& layer) {
  if (!std::isfinite(value))
    throw Error(ExitCode::kBadInput, fmt::format("layer '{}': Hessian holds {}, must be finite", layer, value));
}

// The upper triangle of H + added * I in the given order. A dead column stands apart from all others, so that any
// positive diagonal gives it the same codes; the others are not affected by it.
MatrixF64 damped_and_permuted(const SymmetricMatrix& hessian, const std::vector<int64_t>& order, double added) {
  int64_t columns = hessian.size();
  MatrixF64 damped(columns, columns);
  parallel_chunks(columns, kFactorRowsPerTask, [&](int64_t first, int64_t last) {
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

// Diagonal blocks are Eigen's; all other work is products of this depth.
constexpr int64_t kBlock = 128;

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using BlockMap = Eigen::Map<RowMajor, Eigen::Unaligned, Eigen::OuterStride<>>;

BlockMap map(MatrixViewF64 m) { return {m.data, m.rows, m.cols, Eigen::OuterStride<>(m.stride)}; }

MatrixViewF64 block(MatrixF64& m, int64_t row, int64_t col, int64_t rows, int64_t cols) {
  return m.view().block_rows(row, rows).block_cols(col, cols);
}

// In place. False when pivot i is not above smallest_pivots[i].
bool factor_diagonal_block(MatrixViewF64 view, const double* smallest_pivots) {
  BlockMap a = map(view);
  Eigen::LLT<Eigen::Ref<RowMajor, 0, Eigen::OuterStride<>>> factor(a);
  if (factor.info() != Eigen::Success) return false;
  for (int64_t i = 0; i < view.rows; ++i)
    if (!(a(i, i) * a(i, i) > smallest_pivots[i])) return false;
  return true;
}

// Replaces the lower triangle of A by L with A = L L^T (right-looking). The strict upper triangle becomes rubbish.
bool cholesky_lower_in_place(MatrixF64& a) {
  int64_t n = a.rows();
  // Rounding in row i amounts to about n * epsilon * A_ii (Cauchy-Schwarz); a smaller pivot is noise.
  std::vector<double> smallest_pivots(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i)
    smallest_pivots[static_cast<size_t>(i)] = static_cast<double>(n) * std::numeric_limits<double>::epsilon() * a(i, i);

  for (int64_t k = 0; k < n; k += kBlock) {
    int64_t width = std::min(kBlock, n - k), next = k + width, rest = n - next;
    MatrixViewF64 diagonal = block(a, k, k, width, width);
    if (!factor_diagonal_block(diagonal, smallest_pivots.data() + k)) return false;
    if (rest == 0) break;

    MatrixViewF64 panel = block(a, next, k, rest, width);
    MatrixF64 panel_transposed(width, rest);
    parallel_chunks(rest, kBlock, [&](int64_t first, int64_t last) {
      BlockMap rows = map(panel.block_rows(first, last - first));
      map(diagonal).triangularView<Eigen::Lower>().transpose().solveInPlace<Eigen::OnTheRight>(rows);
      map(panel_transposed.view().block_cols(first, last - first)) = rows.transpose();
    });
    parallel_chunks(rest, kBlock, [&](int64_t first, int64_t last) {
      subtract_product(panel.block_rows(first, last - first), panel_transposed.view().block_cols(0, last),
                       block(a, next + first, next, last - first, last));
    });
  }
  return true;
}

// Replaces L in the lower triangle by X = L^-1, and what is above by zeros. Block row i, of which L is needed for this
// row only: X_ii = L_ii^-1, and X_ij = -L_ii^-1 * sum over j <= m < i of L_im X_mj.
void invert_lower_in_place(MatrixF64& a) {
  int64_t n = a.rows();
  MatrixF64 lower(std::min(kBlock, n), n);  // block row i of L
  for (int64_t i = 0; i < n; i += kBlock) {
    int64_t height = std::min(kBlock, n - i);
    std::copy_n(a.row(i), height * n, lower.data());
    std::fill_n(a.row(i), height * n, 0.0);
    auto diagonal = map(block(lower, 0, i, height, height));
    parallel_chunks(i + height, kBlock, [&](int64_t first, int64_t last) {
      MatrixViewF64 x = block(a, i, first, height, last - first);
      if (first == i)
        map(x).setIdentity();
      else
        subtract_product(block(lower, 0, first, height, i - first), block(a, first, first, i - first, x.cols), x);
      BlockMap solution = map(x);
      diagonal.triangularView<Eigen::Lower>().solveInPlace(solution);
    });
  }
}

// L with J A J = L L^T, J the reversal of rows or columns. Reads the upper triangle of A.
std::optional<MatrixF64> reversed_cholesky(MatrixF64 a) {
  assert(a.rows() == a.cols());
  // Reversing all values of a row-major matrix reverses its rows and its columns; the upper triangle becomes the lower.
  std::ranges::reverse(a.values());
  if (!cholesky_lower_in_place(a)) return std::nullopt;
  return a;
}

// `factorise` of H in the factor's order, with its damping or as much more as it takes.
template <typename Factorise>
MatrixF64 factor_damped(const SymmetricMatrix& hessian, const std::string& layer, HessianFactor& factor,
                        const Factorise& factorise) {
  for (int attempt = 1;; ++attempt) {
    const double added = factor.damping * hessian.mean_diagonal();
    if (auto found = factorise(damped_and_permuted(hessian, factor.order, added))) return std::move(*found);
    factor.damping = raised_damping(factor.damping, attempt, layer);
  }
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

std::optional<MatrixF64> inverse_upper_cholesky(MatrixF64 a) {
  std::optional<MatrixF64> lower = reversed_cholesky(std::move(a));
  if (!lower) return std::nullopt;
  invert_lower_in_place(*lower);
  std::ranges::reverse(lower->values());
  return lower;
}

void require_finite_hessian(const SymmetricMatrix& hessian, const std::string& layer) {
  for (double value : hessian.values()) require_finite_value(value, layer);
}

HessianFactor unfactored_hessian(const std::vector<double>& diagonal, double damping, const std::string& layer,
                                 ColumnOrder order) {
  assert(damping >= 0);
  HessianFactor factor;
  for (size_t i = 0; i < diagonal.size(); ++i) {
    require_finite_value(diagonal[i], layer);
    if (diagonal[i] < 0)
      throw Error(ExitCode::kBadInput,
                  fmt::format("layer '{}': Hessian diagonal is {} at column {}, must be >= 0", layer, diagonal[i], i));
    if (diagonal[i] == 0) factor.dead_columns.push_back(static_cast<int64_t>(i));
  }
  factor.order = ordered_columns(diagonal, order);
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
  require_finite_hessian(hessian, layer);
  HessianFactor factor = unfactored_hessian(hessian.diagonal(), damping, layer, order);
  factor.upper = factor_damped(hessian, layer, factor, inverse_upper_cholesky);
  return factor;
}

std::vector<double> factor_diagonal(const SymmetricMatrix& hessian, double damping, const std::string& layer,
                                    ColumnOrder order) {
  require_finite_hessian(hessian, layer);
  HessianFactor factor = unfactored_hessian(hessian.diagonal(), damping, layer, order);
  const MatrixF64 lower = factor_damped(hessian, layer, factor, reversed_cholesky);
  std::vector<double> diagonal;
  for (int64_t i = lower.rows(); i-- > 0;) diagonal.push_back(1 / lower(i, i));
  return factor.by_column(diagonal);
}

}  // namespace thimble
