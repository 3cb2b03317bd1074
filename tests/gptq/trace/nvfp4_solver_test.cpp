// nvfp4_solver_test.cpp: GPTQ on NVFP4: nearest where columns are independent, better than nearest where they are not,
// the reported losses, a column order that is not the blocks', dead columns, thread counts.
#include <gtest/gtest.h>

#include <cmath>

#include "gptq/trace/gptq_solver.h"
#include "gptq/trace/grid.h"
#include "gptq/trace/plan.h"
#include "runtime/base/parallel.h"
#include "tests/gptq/statistics/gptq_samples.h"

namespace thimble::nvfp4_solver_test {
namespace {

double weighted_loss(const Matrix& weights, const Matrix& rounded, const MatrixF64& hessian) {
  double sum = 0;
  for (int64_t r = 0; r < weights.rows(); ++r)
    for (int64_t i = 0; i < weights.cols(); ++i)
      for (int64_t j = 0; j < weights.cols(); ++j)
        sum += (double{weights(r, i)} - rounded(r, i)) * hessian(i, j) * (double{weights(r, j)} - rounded(r, j));
  return sum;
}

TEST(Nvfp4Solver, IndependentColumnsAreRoundedToNearest) {
  const Matrix weights = random_matrix(9, 5, 1);
  const HessianFactor factor = factor_hessian(diagonal_hessian({1, 5, 2, 9, 3}), 0, "w");
  EXPECT_EQ(solve_gptq_nvfp4(weights, factor, "w").codes, quantize_nvfp4_to_nearest(weights));
}

TEST(Nvfp4Solver, BeatsRoundingToNearestAndReportsItsLosses) {
  const int64_t rows = 37, columns = 165;  // more than a block of columns, and no multiple of 16
  const Matrix weights = random_matrix(rows, columns, 2, 0.05f);
  const SymmetricMatrix hessian = correlated_hessian(columns, 3);
  const HessianFactor factor = factor_hessian(hessian, 0.01, "w");
  const Nvfp4GptqResult solved = solve_gptq_nvfp4(weights, factor, "w");
  const MatrixF64 damped = damped_square(hessian, factor.damping);
  const Matrix back = dequantize_nvfp4(solved.codes, rows, columns);
  const double loss = weighted_loss(weights, back, damped);
  EXPECT_NEAR(solved.report.weighted_loss, loss, 1e-6 * loss);
  double squares = 0;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t k = 0; k < columns; ++k) squares += std::pow(double{weights(r, k)} - back(r, k), 2);
  EXPECT_NEAR(solved.report.weight_mse, squares / static_cast<double>(rows * columns), 1e-9 * squares);
  const Nvfp4Codes nearest = quantize_nvfp4_to_nearest(weights);
  EXPECT_EQ(solved.codes.block_scales, nearest.block_scales) << "scales are the original weights'";
  EXPECT_LT(loss, 0.6 * weighted_loss(weights, dequantize_nvfp4(nearest, rows, columns), damped));
}

TEST(Nvfp4Solver, SameCodesForAnyThreadCount) {
  const Matrix weights = random_matrix(300, 64, 4);
  const HessianFactor factor = factor_hessian(correlated_hessian(64, 5), 0.01, "w");
  const Nvfp4Codes expected = solve_gptq_nvfp4(weights, factor, "w").codes;
  for (int threads : {1, 3}) {
    ThreadLimit limit(threads);
    EXPECT_EQ(solve_gptq_nvfp4(weights, factor, "w").codes, expected);
  }
}

TEST(Nvfp4Solver, DeadColumnsGetZero) {
  const Matrix weights = random_matrix(4, 3, 6);
  const Nvfp4GptqResult solved = solve_gptq_nvfp4(weights, factor_hessian(diagonal_hessian({1, 0, 2}), 0, "w"), "w");
  EXPECT_EQ(solved.report.dead_columns, std::vector<int64_t>{1});
  for (int64_t r = 0; r < 4; ++r) EXPECT_EQ(nvfp4_code(solved.codes, 2, r, 1), 0);
}

TEST(Nvfp4Solver, AnotherNumberOfColumnsIsRefused) {
  EXPECT_THROW(solve_gptq_nvfp4(random_matrix(2, 4, 1), factor_hessian(diagonal_hessian({1, 2}), 0, "w"), "w"), Error);
}

TEST(Nvfp4Solver, QuantizeTensorFollowsThePrecision) {
  const Matrix weights = random_matrix(6, 20, 7);
  const TensorView view{DType::kF32, {6, 20}, std::as_bytes(weights.values())};
  const HessianFactor factor = factor_hessian(correlated_hessian(20, 8), 0.01, "w");
  const SolvedTensor solved = quantize_tensor("w", view, Precision::nvfp4(RoundingMethod::kGptq), &factor);
  EXPECT_EQ(std::get<Nvfp4Codes>(solved.tensor.data), solve_gptq_nvfp4(weights, factor, "w").codes);
  ASSERT_TRUE(solved.report);
  const SolvedTensor nearest = quantize_tensor("w", view, Precision::nvfp4(RoundingMethod::kNearest), nullptr);
  EXPECT_EQ(std::get<Nvfp4Codes>(nearest.tensor.data), quantize_nvfp4_to_nearest(weights));
  EXPECT_FALSE(nearest.report);
  EXPECT_THROW(quantize_tensor("w", view, Precision::nvfp4(RoundingMethod::kGptq), nullptr), Error);
}

}  // namespace
}  // namespace thimble::nvfp4_solver_test
