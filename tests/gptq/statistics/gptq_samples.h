// gptq_samples.h: seeded random matrices and Hessians for the tests of gptq/.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>

#include "gptq/statistics/hessian.h"
#include "runtime/tensor/matrix.h"

namespace thimble {

inline Matrix random_matrix(int64_t rows, int64_t cols, uint32_t seed, float deviation = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  Matrix matrix(rows, cols);
  for (float& value : matrix.values()) value = normal(random);
  return matrix;
}

// X^T X / T of T = 4 K tokens whose neighbouring columns are strongly correlated and whose scales differ.
inline SymmetricMatrix correlated_hessian(int64_t columns, uint32_t seed) {
  Matrix x = random_matrix(4 * columns, columns, seed);
  SymmetricMatrix hessian(columns);
  for (int64_t t = 0; t < x.rows(); ++t) {
    for (int64_t k = 1; k < columns; ++k) x(t, k) += 0.9F * x(t, k - 1);
    for (int64_t k = 0; k < columns; ++k) x(t, k) *= 0.5F + static_cast<float>((k * 37) % 11) / 10;
    for (int64_t i = 0; i < columns; ++i)
      for (int64_t j = 0; j <= i; ++j)
        hessian.lower_row(i)[j] += double{x(t, i)} * x(t, j) / static_cast<double>(x.rows());
  }
  return hessian;
}

inline SymmetricMatrix diagonal_hessian(std::initializer_list<double> diagonal) {
  SymmetricMatrix hessian(static_cast<int64_t>(diagonal.size()));
  int64_t i = 0;
  for (double value : diagonal) {
    hessian.lower_row(i)[i] = value;
    ++i;
  }
  return hessian;
}

// All of H + damping * mean(diag) * I.
inline MatrixF64 damped_square(const SymmetricMatrix& hessian, double damping) {
  MatrixF64 full(hessian.size(), hessian.size());
  for (int64_t i = 0; i < full.rows(); ++i)
    for (int64_t j = 0; j < full.cols(); ++j)
      full(i, j) = hessian(i, j) + (i == j ? damping * hessian.mean_diagonal() : 0);
  return full;
}

// H as the method `trace` has it: sum of x x^T over all tokens / sequences + kCollectionDamping * mean(diag) * I.
inline SymmetricMatrix damped_hessian_per_sequence(const Hessian& hessian) {
  SymmetricMatrix damped = hessian.matrix;
  double tokens_per_sequence = static_cast<double>(hessian.token_count) / static_cast<double>(hessian.sequence_count);
  for (double& value : damped.values()) value *= tokens_per_sequence;
  double added = kCollectionDamping * damped.mean_diagonal();
  for (int64_t i = 0; i < damped.size(); ++i) damped.lower_row(i)[i] += added;
  return damped;
}

// Gauss-Jordan without pivoting, for positive definite matrices.
inline MatrixF64 inverse(MatrixF64 a) {
  int64_t n = a.rows();
  MatrixF64 result(n, n);
  for (int64_t i = 0; i < n; ++i) result(i, i) = 1;
  for (int64_t p = 0; p < n; ++p) {
    double pivot = a(p, p);
    for (int64_t j = 0; j < n; ++j) a(p, j) /= pivot, result(p, j) /= pivot;
    for (int64_t i = 0; i < n; ++i) {
      double factor = a(i, p);
      if (i == p || factor == 0) continue;
      for (int64_t j = 0; j < n; ++j) a(i, j) -= factor * a(p, j), result(i, j) -= factor * result(p, j);
    }
  }
  return result;
}

}  // namespace thimble
