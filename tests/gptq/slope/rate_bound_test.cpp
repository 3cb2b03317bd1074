// rate_bound_test.cpp: reverse water-filling against closed forms, and entropy-coded rounding against its known
// distance from the bound.
#include "gptq/slope/rate_bound.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numbers>

#include "gptq/slope/matrix_loss.h"
#include "tests/gptq/statistics/gptq_samples.h"
#include "tests/runtime/base/error_matcher.h"

namespace thimble::rate_bound_test {
namespace {

double bound(const GaussianSource& source, double loss) { return rate_bound_bits({&source, 1}, loss); }

MatrixLoss loss_of(SymmetricMatrix hessian, std::vector<double> row_weights) {
  return {store_in_memory(std::move(hessian)), {}, std::move(row_weights)};
}

// Components are row * column / 2.
TEST(RateBound, OfEqualComponentsIsTheGaussianOne) {
  GaussianSource source{std::vector<double>(5, 3.0), std::vector<double>(7, 4.0)};  // 35 components of 6
  EXPECT_NEAR(bound(source, 35 * 6 / 4.0), 35 * 1.0, 1e-9);                         // a quarter of the variance: a bit
  EXPECT_NEAR(bound(source, 35 * 6 / 1024.0), 35 * 5.0, 1e-9);
  EXPECT_NEAR(bound(source, 35 * 6 * std::exp2(-2 * 40.0)), 35 * 40.0, 1e-6);
}

TEST(RateBound, ComponentsBelowTheLevelGetNoBits) {
  GaussianSource source{{2}, {16, 1}};  // components of 16 and 1
  EXPECT_NEAR(bound(source, 0.5), (std::log2(16 / 0.25) + std::log2(1 / 0.25)) / 2, 1e-9);
  EXPECT_NEAR(bound(source, 2), std::log2(16.0) / 2, 1e-9);  // where the level is 1
  EXPECT_NEAR(bound(source, 5), std::log2(16.0 / 4) / 2, 1e-9);
  EXPECT_EQ(bound(source, 17), 0);
  EXPECT_EQ(bound(source, 100), 0);
}

TEST(RateBound, OfNothingToLoseOrNoLoss) {
  EXPECT_EQ(bound({{}, {}}, 0), 0);
  EXPECT_EQ(bound({{0, 0}, {1, 2}}, 0), 0);
  EXPECT_EQ(bound({{1, 2}, {0, 0}}, 0), 0);
  EXPECT_EQ(bound({{1, 0}, {2, 0}}, 1), 0);
  EXPECT_NEAR(bound({{1, 0}, {2, 0}}, 0.25), 1, 1e-9);
  EXPECT_EQ(bound({{1}, {1}}, 0), std::numeric_limits<double>::infinity());
}

TEST(RateBound, OfSeveralSourcesSharesOneLevel) {
  std::vector<GaussianSource> both = {{{2}, {16}}, {{2, 2}, {1}}};
  EXPECT_NEAR(rate_bound_bits(both, 0.75), (std::log2(64.0) + 2 * std::log2(4.0)) / 2, 1e-9);
  EXPECT_NEAR(rate_bound_bits(both, 4), std::log2(16.0 / 2) / 2, 1e-9);
  // Any other way to share the loss takes more.
  EXPECT_GT(bound(both[0], 0.5) + bound(both[1], 0.25), rate_bound_bits(both, 0.75) + 0.1);
  EXPECT_NEAR(bound(both[0], 0.25) + bound(both[1], 0.5), rate_bound_bits(both, 0.75), 1e-9);
}

TEST(RateBound, FallsAsTheLossGrows) {
  GaussianSource source{{0.5, 3, 1e-3}, {90, 7, 7, 0.2, 1e-9, 0}};
  double previous = std::numeric_limits<double>::infinity();
  for (double loss = 1e-12; loss < 300; loss *= 3) {
    const double bits = bound(source, loss);
    EXPECT_LT(bits, previous);
    previous = bits > 0 ? bits : 1e-300;
    EXPECT_GE(bits, 0);
  }
}

TEST(RateBound, ReadsRowsAndTheSpectrumOfH) {
  Matrix weights(2, 2);
  weights(0, 0) = 3;
  weights(0, 1) = 1;           // mean square 5
  weights(1, 1) = 2;           // mean square 2
  SymmetricMatrix hessian(2);  // eigenvalues 6 and 2
  hessian.lower_row(0)[0] = hessian.lower_row(1)[1] = 4;
  hessian.lower_row(1)[0] = -2;
  MatrixLoss loss = loss_of(hessian, {1, 10});
  std::vector<double> spectrum = hessian_spectrum(loss, "layer");
  ASSERT_EQ(spectrum.size(), 2);
  EXPECT_NEAR(spectrum[0], 6, 1e-12);
  EXPECT_NEAR(spectrum[1], 2, 1e-12);
  GaussianSource source = gaussian_source(loss, weights, spectrum);
  EXPECT_EQ(source.rows, (std::vector<double>{5, 20}));
  EXPECT_EQ(source.columns, spectrum);
}

TEST(RateBound, OfATableReadsItsDiagonal) {
  MatrixLoss loss{nullptr, {1, 5, 3}, {1}};
  EXPECT_EQ(hessian_spectrum(loss, "table"), (std::vector<double>{5, 3, 1}));
}

TEST(RateBound, TurningTheInputsChangesNothing) {
  SymmetricMatrix hessian = correlated_hessian(12, 4);
  std::vector<double> spectrum = hessian_spectrum(loss_of(hessian, {1}), "layer");
  double sum = 0, squares = 0, expected_squares = 0;
  for (double value : spectrum) sum += value, squares += value * value;
  for (int64_t i = 0; i < 12; ++i)
    for (int64_t j = 0; j < 12; ++j) expected_squares += hessian(i, j) * hessian(i, j);
  EXPECT_NEAR(sum, hessian.trace(), 1e-12 * sum);
  EXPECT_NEAR(squares, expected_squares, 1e-12 * squares);
  EXPECT_TRUE(std::ranges::is_sorted(spectrum, std::greater{}));
}

TEST(RateBound, AHessianThatIsNotFiniteIsNamed) {
  SymmetricMatrix hessian = diagonal_hessian({1, 2});
  hessian.lower_row(1)[0] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(bad_input_message([&] { hessian_spectrum(loss_of(hessian, {1}), "some.layer"); }),
              ::testing::AllOf(::testing::HasSubstr("'some.layer'"), ::testing::HasSubstr("not finite")));
}

// Rounding to equal steps and ideal entropy coding costs 1/2 log2(2 pi e / 12) = 0.2546 bits per weight more than the
// bound at high rate (Gish and Pierce 1968).
TEST(RateBound, RoundingIsAQuarterBitAway) {
  constexpr int64_t kRows = 300, kColumns = 400;
  constexpr float kStep = 0.125F;
  Matrix weights = random_matrix(kRows, kColumns, 8), rounded(kRows, kColumns);
  std::map<float, double> counts;
  for (int64_t r = 0; r < kRows; ++r)
    for (int64_t k = 0; k < kColumns; ++k) {
      rounded(r, k) = std::round(weights(r, k) / kStep) * kStep;
      ++counts[rounded(r, k)];
    }
  constexpr double kWeights = kRows * kColumns;
  double entropy = 0;
  for (const auto& [value, count] : counts) entropy -= count * std::log2(count / kWeights);
  MatrixLoss loss{nullptr, std::vector<double>(kColumns, 3), std::vector<double>(kRows, 0.7)};
  GaussianSource source = gaussian_source(loss, weights, hessian_spectrum(loss, "layer"));
  const double distance = (entropy - bound(source, predicted_loss(loss, weights, rounded))) / kWeights;
  EXPECT_NEAR(distance, std::log2(2 * std::numbers::pi * std::numbers::e / 12) / 2, 0.005);
}

}  // namespace
}  // namespace thimble::rate_bound_test
