// rate_model_test.cpp: scales that are recovered from samples, and rates that are lengths of a code.
#include "gptq/slope/rate_model.h"

#include <gtest/gtest.h>

#include <limits>

#include "runtime/base/parallel.h"
#include "tests/gptq/statistics/gptq_samples.h"

namespace thimble::rate_model_test {
namespace {

TEST(WeightScales, RecoversFactorsOfRowsAndColumns) {
  const int64_t rows = 700, columns = 900;
  Matrix weights = random_matrix(rows, columns, 1);
  auto row_log2 = [](int64_t r) { return static_cast<float>(r % 7) - 5; };
  auto column_log2 = [](int64_t k) { return static_cast<float>(k % 5) / 2 - 1; };
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t k = 0; k < columns; ++k) weights(r, k) *= std::exp2(row_log2(r) + column_log2(k));
  const WeightScales scales = fit_weight_scales(weights);
  // log2 of a deviation from n samples is off by 1 / sqrt(2 n) / ln 2, 0.05 for row and column together; six times
  // that.
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t k = 0; k < columns; ++k)
      ASSERT_NEAR(scales.rows[static_cast<size_t>(r)] + scales.columns[static_cast<size_t>(k)],
                  row_log2(r) + column_log2(k), 0.3)
          << r << " " << k;
}

TEST(WeightScales, AreTheSameOnAnyNumberOfThreads) {
  for (int64_t rows : {1, 33, 5000}) {
    const Matrix weights = random_matrix(rows, 40, 5);
    const WeightScales scales = fit_weight_scales(weights);
    const ThreadLimit one(1);
    const WeightScales alone = fit_weight_scales(weights);
    EXPECT_EQ(alone.rows, scales.rows);
    EXPECT_EQ(alone.columns, scales.columns);
  }
}

TEST(WeightScales, OfZerosAreSmall) {
  Matrix weights(3, 4);
  weights(1, 2) = 8;
  const WeightScales scales = fit_weight_scales(weights);
  EXPECT_EQ(scales.rows[0], kSmallestScale);
  EXPECT_EQ(scales.columns[0], kSmallestScale);
  EXPECT_TRUE(std::isfinite(scales.rows[1] + scales.columns[2]));
  EXPECT_GT(scales.rows[1] + scales.columns[2], 2);
  const WeightScales zeros = fit_weight_scales(Matrix(2, 2));
  EXPECT_EQ(zeros.rows, (std::vector<float>{kSmallestScale, kSmallestScale}));
  EXPECT_EQ(fit_weight_scales(Matrix(0, 0)).rows.size(), 0u);
}

TEST(RateTable, ClassesAreQuarterOctaves) {
  EXPECT_EQ(rate_class(-2), 0);
  EXPECT_EQ(rate_class(-1.76F), 1);
  EXPECT_EQ(rate_class(0), 8);
  EXPECT_EQ(rate_class(0.24F), 9);
  EXPECT_EQ(rate_class(8), kRateClasses - 1);
  EXPECT_EQ(rate_class(-2 * kSmallestScale), kRateClasses - 1);
  EXPECT_EQ(rate_class(2 * kSmallestScale), 0);
  EXPECT_EQ(rate_class(std::numeric_limits<float>::infinity()), kRateClasses - 1);
}

TEST(RateTable, AreLengthsOfACode) {
  for (int c = 0; c < kRateClasses; ++c)
    for (int set : {0, 1}) {
      double mass = 0;
      for (int32_t code = -512; code < 512; ++code) mass += std::exp2(-rate_table().bits(c, 2 * code + set));
      // Kraft's inequality, but for codes rarer than 2^-12, of which none is cheaper than 13 bits.
      EXPECT_LE(mass, 1 + 1024 * std::exp2(-13) * 0.2) << c;
      if (c <= 32) {
        EXPECT_GE(mass, 0.99) << c;  // the others reach beyond
      }
    }
}

TEST(RateTable, FallTowardsZeroAndAreFinite) {
  constexpr auto kFar = std::numeric_limits<int32_t>::max();
  for (int c = 0; c < kRateClasses; ++c) {
    for (int32_t level = 1; level < 2000; ++level) {
      ASSERT_GE(rate_table().bits(c, level), rate_table().bits(c, level - 1)) << c << " " << level;
      ASSERT_EQ(rate_table().bits(c, level), rate_table().bits(c, -level));
    }
    EXPECT_TRUE(std::isfinite(rate_table().bits(c, kFar)));
    EXPECT_TRUE(std::isfinite(rate_table().bits(c, -kFar - 1)));
  }
}

TEST(RateTable, AreThoseOfAGaussian) {
  // Mass of a standard Gaussian, from tables: within 0.5 of 0: 0.382925; 0.5 to 1.5: 0.241730; 0 to 1: 0.341345.
  const int one_code = rate_class(1);  // a deviation of two levels
  EXPECT_NEAR(rate_table().bits(one_code, 0), -std::log2(0.382925), 1e-4);
  EXPECT_NEAR(rate_table().bits(one_code, 2), -std::log2(0.241730), 1e-4);
  EXPECT_NEAR(rate_table().bits(one_code, 1), -std::log2(0.341345), 1e-4);
}

}  // namespace
}  // namespace thimble::rate_model_test
