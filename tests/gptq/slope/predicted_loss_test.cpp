// predicted_loss_test.cpp: the loss against its definition written down naively, and against what the solver reports.
#include "gptq/slope/matrix_loss.h"

#include <gtest/gtest.h>

#include "gptq/factor/hessian_factor.h"
#include "gptq/slope/slope_solver.h"
#include "runtime/base/parallel.h"
#include "tests/gptq/statistics/gptq_samples.h"

namespace thimble::predicted_loss_test {
namespace {

std::vector<double> varied_row_weights(int64_t rows) {
  std::vector<double> weights;
  for (int64_t r = 0; r < rows; ++r) weights.push_back(0.25 * static_cast<double>(1 + r * 7 % 5));
  return weights;
}

double naive_loss(const MatrixLoss& loss, const Matrix& a, const Matrix& b) {
  double sum = 0;
  for (int64_t r = 0; r < a.rows(); ++r)
    for (int64_t i = 0; i < a.cols(); ++i)
      for (int64_t j = 0; j < a.cols(); ++j) {
        const double h = loss.hessian ? (*loss.hessian->load())(i, j)
                         : i == j     ? loss.diagonal[static_cast<size_t>(i)]
                                      : 0;
        sum += loss.row_weights[static_cast<size_t>(r)] * (double{b(r, i)} - a(r, i)) * h * (double{b(r, j)} - a(r, j));
      }
  return sum / 2;
}

TEST(PredictedLoss, IsTheWeightedSquareOfTheErrors) {
  for (int64_t rows : {1, 5, 64, 131})
    for (int64_t columns : {1, 3, 40}) {
      SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(columns));
      Matrix weights = random_matrix(rows, columns, 1), quantized = random_matrix(rows, columns, 2);
      MatrixLoss loss{store_in_memory(correlated_hessian(columns, 3)), {}, varied_row_weights(rows)};
      const double expected = naive_loss(loss, weights, quantized);
      EXPECT_NEAR(predicted_loss(loss, weights, quantized), expected, 1e-12 * expected);
    }
}

TEST(PredictedLoss, OfATableTakesItsDiagonal) {
  Matrix weights = random_matrix(70, 6, 1), quantized = random_matrix(70, 6, 2);
  MatrixLoss loss{nullptr, {4, 1, 0.5, 9, 2, 100}, varied_row_weights(70)};
  const double expected = naive_loss(loss, weights, quantized);
  EXPECT_NEAR(predicted_loss(loss, weights, quantized), expected, 1e-12 * expected);
  loss.diagonal.back() = 0;
  EXPECT_LT(predicted_loss(loss, weights, quantized), expected / 2);
}

TEST(PredictedLoss, OfNoErrorsOrNoRowsIsNone) {
  Matrix weights = random_matrix(9, 4, 1), none(0, 4);
  EXPECT_EQ(predicted_loss({store_in_memory(correlated_hessian(4, 1)), {}, varied_row_weights(9)}, weights, weights),
            0);
  EXPECT_EQ(predicted_loss({store_in_memory(correlated_hessian(4, 1)), {}, {}}, none, none), 0);
}

// Errors along an eigenvector that inputs never have cost nothing, however large; rounding must not make it negative.
TEST(PredictedLoss, OfErrorsThatCancelIsNotNegative) {
  SymmetricMatrix ones(2);
  for (int64_t i = 0; i < 2; ++i)
    for (int64_t j = 0; j <= i; ++j) ones.lower_row(i)[j] = 0.1;
  Matrix weights(1, 2), quantized(1, 2);
  quantized(0, 0) = 1e6F;
  quantized(0, 1) = -1e6F;
  EXPECT_EQ(predicted_loss({store_in_memory(ones), {}, {1}}, weights, quantized), 0);
}

TEST(PredictedLoss, IsWhatTheSolverReportsWithoutDamping) {
  constexpr int64_t kRows = 40, kColumns = 24;
  Matrix weights = random_matrix(kRows, kColumns, 5);
  MatrixLoss loss{store_in_memory(correlated_hessian(kColumns, 6)), {}, varied_row_weights(kRows)};
  HessianFactor factor = factor_hessian(*loss.hessian->load(), 0, "layer");
  SlopeGrid grid{4, 0.2, std::vector<int16_t>(kRows, -64), std::vector<int16_t>(kColumns, 0)};
  SlopeResult solved = solve_slope(weights, &factor, grid, loss.row_weights, "layer");
  Matrix quantized(dequantize(QuantizedTensor{"layer", {kRows, kColumns}, solved.codes}), kRows, kColumns);
  const double expected = solved.report.row_weighted_loss / 2;
  EXPECT_NEAR(predicted_loss(loss, weights, quantized), expected, 1e-9 * expected);
}

TEST(PredictedLoss, DoesNotDependOnThreads) {
  Matrix weights = random_matrix(300, 50, 1), quantized = random_matrix(300, 50, 2);
  MatrixLoss loss{store_in_memory(correlated_hessian(50, 3)), {}, varied_row_weights(300)};
  const double expected = predicted_loss(loss, weights, quantized);
  for (int threads : {1, 2, 5}) {
    ThreadLimit limit(threads);
    EXPECT_EQ(predicted_loss(loss, weights, quantized), expected);
  }
}

}  // namespace
}  // namespace thimble::predicted_loss_test
