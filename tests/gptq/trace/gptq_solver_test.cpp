// gptq_solver_test.cpp: the blocked solver against GPTQ written down as naively as possible.
#include "gptq/trace/gptq_solver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "gptq/trace/grid.h"
#include "runtime/base/error.h"
#include "runtime/base/parallel.h"
#include "runtime/tensor/dtype.h"
#include "tests/gptq/statistics/gptq_samples.h"

namespace thimble::gptq_solver_test {
namespace {

struct NaiveResult {
  std::vector<int8_t> codes;
  std::vector<uint16_t> scales;
  double squared_error = 0;
};

// Optimal brain quantization in the order of the largest diagonal (arXiv 2210.17323, eq. 2): after each column, the
// Hessian of the remaining columns is inverted afresh. No Cholesky, no blocks, no permutation of the weights.
NaiveResult naive_gptq(const Matrix& weights, const MatrixF64& hessian, int max_code, double clip_fraction) {
  int64_t rows = weights.rows(), columns = weights.cols();
  NaiveResult result{std::vector<int8_t>(static_cast<size_t>(rows * columns)), {}, 0};
  MatrixF64 w(rows, columns);
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<double> sorted;
    for (int64_t k = 0; k < columns; ++k) w(r, k) = weights(r, k), sorted.push_back(std::abs(w(r, k)));
    std::ranges::sort(sorted);
    double position = clip_fraction * static_cast<double>(columns - 1), below = std::floor(position);
    auto index = static_cast<size_t>(below);
    double high = sorted[std::min(index + 1, sorted.size() - 1)];
    double clip = sorted[index] + (high - sorted[index]) * (position - below);
    result.scales.push_back(fp16_from_float(static_cast<float>(std::max(clip / max_code, 1.0 / max_code))));
  }
  std::vector<int64_t> remaining(static_cast<size_t>(columns));
  for (int64_t k = 0; k < columns; ++k) remaining[static_cast<size_t>(k)] = k;
  while (!remaining.empty()) {
    auto n = static_cast<int64_t>(remaining.size());
    auto q = std::ranges::max_element(remaining, {}, [&](int64_t k) { return hessian(k, k); }) - remaining.begin();
    MatrixF64 left(n, n);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j)
        left(i, j) = hessian(remaining[static_cast<size_t>(i)], remaining[static_cast<size_t>(j)]);
    left = inverse(left);
    int64_t column = remaining[static_cast<size_t>(q)];
    for (int64_t r = 0; r < rows; ++r) {
      double scale = float_from_fp16(result.scales[static_cast<size_t>(r)]);
      double code = std::clamp(std::nearbyint(w(r, column) / scale), double(-max_code), double(max_code));
      double error = (w(r, column) - code * scale) / left(q, q);
      for (int64_t j = 0; j < n; ++j) w(r, remaining[static_cast<size_t>(j)]) -= error * left(q, j);
      result.codes[static_cast<size_t>(r * columns + column)] = static_cast<int8_t>(code);
      result.squared_error += std::pow(weights(r, column) - code * scale, 2);
    }
    remaining.erase(remaining.begin() + q);
  }
  return result;
}

double weighted_loss(const Matrix& weights, const RowScaledCodes& coded, const MatrixF64& hessian) {
  double loss = 0;
  int64_t columns = weights.cols();
  for (int64_t r = 0; r < weights.rows(); ++r) {
    double scale = float_from_fp16(coded.row_scales[static_cast<size_t>(r)]);
    std::vector<double> difference(static_cast<size_t>(columns));
    for (int64_t k = 0; k < columns; ++k)
      difference[static_cast<size_t>(k)] = weights(r, k) - coded.codes[static_cast<size_t>(r * columns + k)] * scale;
    for (int64_t i = 0; i < columns; ++i)
      for (int64_t j = 0; j < columns; ++j)
        loss += difference[static_cast<size_t>(i)] * hessian(i, j) * difference[static_cast<size_t>(j)];
  }
  return loss;
}

struct Case {
  int64_t rows, columns;
  int max_code;
};

class SolverShapes : public ::testing::TestWithParam<Case> {};

TEST_P(SolverShapes, MatchesNaiveGptq) {
  auto [rows, columns, max_code] = GetParam();
  Matrix weights = random_matrix(rows, columns, 11, 2);
  SymmetricMatrix hessian = correlated_hessian(columns, 12);
  MatrixF64 damped = damped_square(hessian, 0.02);
  NaiveResult best;
  double best_clip = 0;
  for (double clip : {0.999, 0.9995, 0.9999, 0.99999, 1.0}) {
    NaiveResult result = naive_gptq(weights, damped, max_code, clip);
    if (best_clip == 0 || result.squared_error < best.squared_error) best = result, best_clip = clip;
  }
  GptqResult found = solve_gptq(weights, factor_hessian(hessian, 0.02, "layer"), max_code, "layer");
  EXPECT_EQ(found.codes.max_code, max_code);
  EXPECT_EQ(found.codes.codes, best.codes);
  EXPECT_EQ(found.codes.row_scales, best.scales);
  EXPECT_EQ(found.report.clip_fraction, best_clip);
  EXPECT_NEAR(found.report.weight_mse, best.squared_error / static_cast<double>(rows * columns), 1e-9);
  double expected_loss = weighted_loss(weights, found.codes, damped);
  EXPECT_NEAR(found.report.weighted_loss, expected_loss, 1e-9 * expected_loss);
}

INSTANTIATE_TEST_SUITE_P(Shapes, SolverShapes,
                         ::testing::Values(Case{1, 1, 15}, Case{1, 40, 15}, Case{9, 1, 31}, Case{5, 2, 1},
                                           Case{7, 37, 31}, Case{130, 20, 15}, Case{3, 128, 15}, Case{3, 141, 127}));

TEST(GptqSolver, BlocksAndRowTasksAgreeWithOneRowAtATime) {
  // Weights below 1 have the same scale with every clip, whatever other rows are solved with them.
  Matrix weights = random_matrix(150, 300, 1, 0.15F);
  HessianFactor factor = factor_hessian(correlated_hessian(300, 2), 0.01, "layer");
  GptqResult all = solve_gptq(weights, factor, 15, "layer");
  for (int64_t r : {0, 1, 127, 128, 149}) {
    GptqResult one = solve_gptq(weights.view().block_rows(r, 1), factor, 15, "layer");
    EXPECT_EQ(one.codes.row_scales[0], all.codes.row_scales[static_cast<size_t>(r)]);
    EXPECT_TRUE(std::equal(one.codes.codes.begin(), one.codes.codes.end(), all.codes.codes.begin() + r * 300)) << r;
  }
}

TEST(GptqSolver, SameForAnyThreadCount) {
  Matrix weights = random_matrix(300, 260, 1, 2);
  SymmetricMatrix hessian = correlated_hessian(260, 2);
  std::vector<GptqResult> found;
  for (int threads : {1, 4}) {
    ThreadLimit limit(threads);
    found.push_back(solve_gptq(weights, factor_hessian(hessian, 0.01, "layer"), 15, "layer"));
  }
  EXPECT_EQ(found[0].codes, found[1].codes);
  EXPECT_EQ(found[0].report.weight_mse, found[1].report.weight_mse);
  EXPECT_EQ(found[0].report.weighted_loss, found[1].report.weighted_loss);
}

TEST(GptqSolver, BeatsNearestRoundingWhereInputsAreCorrelated) {
  Matrix weights = random_matrix(64, 200, 5, 2);
  SymmetricMatrix hessian = correlated_hessian(200, 6);
  GptqResult solved = solve_gptq(weights, factor_hessian(hessian, 0.01, "layer"), 15, "layer");
  RowScaledCodes nearest = solved.codes;
  for (int64_t r = 0; r < 64; ++r)
    for (int64_t k = 0; k < 200; ++k)
      nearest.codes[static_cast<size_t>(r * 200 + k)] =
          nearest_code(weights(r, k), float_from_fp16(nearest.row_scales[static_cast<size_t>(r)]), 15);
  EXPECT_LT(solved.report.weighted_loss, 0.7 * weighted_loss(weights, nearest, damped_square(hessian, 0.01)));
}

TEST(GptqSolver, IsNearestRoundingWhereInputsAreNotCorrelated) {
  Matrix weights = random_matrix(10, 3, 5, 2);
  GptqResult solved = solve_gptq(weights, factor_hessian(diagonal_hessian({1, 3, 2}), 0.01, "layer"), 31, "layer");
  for (int64_t r = 0; r < 10; ++r)
    for (int64_t k = 0; k < 3; ++k)
      EXPECT_EQ(solved.codes.codes[static_cast<size_t>(r * 3 + k)],
                nearest_code(weights(r, k), float_from_fp16(solved.codes.row_scales[static_cast<size_t>(r)]), 31));
}

TEST(GptqSolver, DeadColumnsGetCodeZeroAndDisturbNobody) {
  SymmetricMatrix small = correlated_hessian(6, 3), hessian(8);
  // Weights below 1 have the same scale with every clip, whatever other columns there are.
  Matrix small_weights = random_matrix(20, 6, 4, 0.2F), weights(20, 8);
  std::vector<int64_t> live = {0, 2, 3, 4, 6, 7};  // 1 and 5 are dead
  for (size_t i = 0; i < live.size(); ++i) {
    for (size_t j = 0; j <= i; ++j)
      hessian.lower_row(live[i])[live[j]] = small(static_cast<int64_t>(i), static_cast<int64_t>(j));
    for (int64_t r = 0; r < 20; ++r) weights(r, live[i]) = small_weights(r, static_cast<int64_t>(i));
  }
  for (int64_t r = 0; r < 20; ++r) {
    weights(r, 1) = 0.9F;
    weights(r, 5) = -0.9F;
  }
  // Equal added damping: 0.01 of a mean over 8 columns against 0.0075 of one over 6.
  GptqResult with_dead = solve_gptq(weights, factor_hessian(hessian, 0.01, "layer"), 15, "layer");
  GptqResult without = solve_gptq(small_weights, factor_hessian(small, 0.0075, "layer"), 15, "layer");
  EXPECT_EQ(with_dead.report.dead_columns, (std::vector<int64_t>{1, 5}));
  EXPECT_EQ(with_dead.codes.row_scales, without.codes.row_scales);
  for (int64_t r = 0; r < 20; ++r) {
    EXPECT_EQ(with_dead.codes.codes[static_cast<size_t>(r * 8 + 1)], 0);
    EXPECT_EQ(with_dead.codes.codes[static_cast<size_t>(r * 8 + 5)], 0);
    for (size_t i = 0; i < live.size(); ++i)
      EXPECT_EQ(with_dead.codes.codes[static_cast<size_t>(r * 8 + live[i])],
                without.codes.codes[static_cast<size_t>(r * 6) + i]);
  }
}

TEST(GptqSolver, SingularHessianIsDampedAndReported) {
  SymmetricMatrix ones(30);
  for (double& value : ones.values()) value = 1;
  GptqResult solved = solve_gptq(random_matrix(4, 30, 1), factor_hessian(ones, 0, "layer"), 15, "layer");
  EXPECT_EQ(solved.report.damping, 1e-6);
  EXPECT_TRUE(std::isfinite(solved.report.weighted_loss));
}

TEST(GptqSolver, ZeroAndConstantRows) {
  Matrix weights(3, 50);
  for (int64_t k = 0; k < 50; ++k) weights(1, k) = 31, weights(2, k) = -0.001F;
  GptqResult solved = solve_gptq(weights, factor_hessian(correlated_hessian(50, 1), 0.01, "layer"), 31, "layer");
  EXPECT_EQ(solved.codes.row_scales, (std::vector<uint16_t>{row_scale(0, 31), fp16_from_float(1), row_scale(0, 31)}));
  for (size_t k = 0; k < 50; ++k) {
    EXPECT_EQ(solved.codes.codes[k], 0);
    EXPECT_EQ(solved.codes.codes[50 + k], 31);
  }
  // Each weight is far below half a step; with feedback their sum may reach one.
  for (size_t k = 0; k < 50; ++k) EXPECT_LE(std::abs(solved.codes.codes[100 + k]), 1);
}

TEST(GptqSolver, HugeOutlierKeepsCodesInRange) {
  Matrix weights = random_matrix(4, 600, 1);
  weights(2, 100) = 60000;
  SymmetricMatrix hessian = correlated_hessian(600, 2);
  GptqResult solved = solve_gptq(weights, factor_hessian(hessian, 0.01, "layer"), 15, "layer");
  for (int8_t code : solved.codes.codes) ASSERT_LE(std::abs(code), 15);
  for (uint16_t scale : solved.codes.row_scales) EXPECT_TRUE(std::isfinite(float_from_fp16(scale)));
  EXPECT_EQ(solved.report.clip_fraction, 1.0);  // clipping the outlier would cost most
  EXPECT_EQ(solved.codes.codes[2 * 600 + 100], 15);
}

TEST(GptqSolver, RefusesAFactorOfAnotherWidth) {
  HessianFactor factor = factor_hessian(diagonal_hessian({1, 2}), 0.01, "layer");
  EXPECT_THROW(solve_gptq(Matrix(2, 3), factor, 15, "layer"), Error);
}

}  // namespace
}  // namespace thimble::gptq_solver_test
