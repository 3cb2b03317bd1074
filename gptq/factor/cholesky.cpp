// cholesky.cpp: inverse_upper_cholesky() by a blocked factorisation and the inversion of its lower triangular factor.
// Eigen's on blocks, runtime/cpu/gemm.h between them.
#include <Eigen/Cholesky>
#include <algorithm>
#include <cassert>
#include <limits>
#include <vector>

#include "gptq/factor/hessian_factor.h"
#include "runtime/base/parallel.h"
#include "runtime/cpu/gemm.h"

namespace thimble {
namespace {

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

// X = L^-1, lower triangular. Block row i: X_ii = L_ii^-1, and X_ij = -L_ii^-1 * sum over j <= m < i of L_im X_mj.
MatrixF64 invert_lower(MatrixF64& lower) {
  int64_t n = lower.rows();
  MatrixF64 inverse(n, n);
  for (int64_t i = 0; i < n; i += kBlock) {
    int64_t height = std::min(kBlock, n - i);
    auto diagonal = map(block(lower, i, i, height, height));
    parallel_chunks(i + height, kBlock, [&](int64_t first, int64_t last) {
      MatrixViewF64 x = block(inverse, i, first, height, last - first);
      if (first == i)
        map(x).setIdentity();
      else
        subtract_product(block(lower, i, first, height, i - first), block(inverse, first, first, i - first, x.cols), x);
      BlockMap solution = map(x);
      diagonal.triangularView<Eigen::Lower>().solveInPlace(solution);
    });
  }
  return inverse;
}

}  // namespace

std::optional<MatrixF64> inverse_upper_cholesky(MatrixF64 a) {
  assert(a.rows() == a.cols());
  // Reversing all values of a row-major matrix reverses its rows and its columns; the upper triangle becomes the lower.
  std::ranges::reverse(a.values());
  if (!cholesky_lower_in_place(a)) return std::nullopt;
  MatrixF64 factor = invert_lower(a);
  std::ranges::reverse(factor.values());
  return factor;
}

}  // namespace thimble
