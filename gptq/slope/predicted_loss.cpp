// predicted_loss.cpp: see predicted_loss.h.
#include "gptq/slope/predicted_loss.h"

#include <algorithm>
#include <numeric>

#include "runtime/base/parallel.h"
#include "runtime/cpu/gemm.h"

namespace thimble {
namespace {

constexpr int64_t kRowsPerTask = 64;

MatrixF64 square_of(const SymmetricMatrix& matrix) {
  MatrixF64 square(matrix.size(), matrix.size());
  for (int64_t i = 0; i < matrix.size(); ++i)
    for (int64_t j = 0; j <= i; ++j) square(i, j) = square(j, i) = matrix(i, j);
  return square;
}

// -e H, row by row.
void subtract_from_zero(const MatrixF64& errors, const MatrixLoss& loss, const MatrixF64& hessian,
                        MatrixF64& products) {
  if (loss.hessian) return subtract_product(errors, hessian, products);
  for (int64_t r = 0; r < errors.rows(); ++r)
    for (int64_t k = 0; k < errors.cols(); ++k) products(r, k) = -errors(r, k) * loss.diagonal[static_cast<size_t>(k)];
}

}  // namespace

// Errors of GPTQ lie where H is small, so that most of e H e^T cancels: float64.
double predicted_loss(const MatrixLoss& loss, ConstMatrixView weights, ConstMatrixView quantized) {
  const MatrixF64 hessian = loss.hessian ? square_of(*loss.hessian) : MatrixF64();
  std::vector<double> row_losses(static_cast<size_t>(weights.rows));
  parallel_chunks(weights.rows, kRowsPerTask, [&](int64_t first, int64_t last) {
    MatrixF64 errors(last - first, weights.cols), products(last - first, weights.cols);
    for (int64_t r = first; r < last; ++r)
      for (int64_t k = 0; k < weights.cols; ++k) errors(r - first, k) = double{quantized.row(r)[k]} - weights.row(r)[k];
    subtract_from_zero(errors, loss, hessian, products);
    for (int64_t r = first; r < last; ++r) {
      const double* error = errors.row(r - first);
      row_losses[static_cast<size_t>(r)] =
          -std::inner_product(error, error + weights.cols, products.row(r - first), 0.0) / 2;
    }
  });
  return std::max(0.0, std::inner_product(row_losses.begin(), row_losses.end(), loss.row_weights.begin(), 0.0));
}

}  // namespace thimble
