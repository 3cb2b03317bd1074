// grid_test.cpp: quantiles, scales and rounding.
#include "gptq/trace/grid.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>

#include "runtime/base/error.h"
#include "runtime/tensor/dtype.h"
#include "tests/gptq/statistics/gptq_samples.h"

namespace thimble::grid_test {
namespace {

double quantile_of(std::vector<float> values, double fraction) {
  std::ranges::sort(values, std::greater{});
  return quantile(values, values.size(), fraction);
}

TEST(Grid, QuantileInterpolatesLinearly) {
  // Expected values from numpy.quantile.
  std::vector<float> values = {3, -1, 4, 1, 5};
  EXPECT_DOUBLE_EQ(quantile_of(values, 0), -1);
  EXPECT_DOUBLE_EQ(quantile_of(values, 0.1), -0.2);
  EXPECT_DOUBLE_EQ(quantile_of(values, 0.5), 3);
  EXPECT_DOUBLE_EQ(quantile_of(values, 0.999), 4.996);
  EXPECT_DOUBLE_EQ(quantile_of(values, 1), 5);
  EXPECT_DOUBLE_EQ(quantile_of({7}, 0.3), 7);
  EXPECT_DOUBLE_EQ(quantile_of({2, 2, 2}, 0.77), 2);
  EXPECT_EQ(quantile_of({}, 0.5), 0);
}

TEST(Grid, ScaleHasAFloorAndIsRoundedToFp16) {
  EXPECT_EQ(row_scale(62, 31), fp16_from_float(2));
  EXPECT_EQ(row_scale(0, 31), fp16_from_float(1.0F / 31));
  EXPECT_EQ(row_scale(0.999, 15), row_scale(0, 15));
  EXPECT_EQ(row_scale(1e30, 15), 0x7c00);
}

TEST(Grid, RoundsHalvesToEvenAndClamps) {
  EXPECT_EQ(nearest_code(0.5, 1, 15), 0);
  EXPECT_EQ(nearest_code(1.5, 1, 15), 2);
  EXPECT_EQ(nearest_code(-2.5, 1, 15), -2);
  EXPECT_EQ(nearest_code(-1.25, 0.5, 15), -2);
  EXPECT_EQ(nearest_code(15.4, 1, 15), 15);
  EXPECT_EQ(nearest_code(1e300, 0.1, 15), 15);
  EXPECT_EQ(nearest_code(-1e300, 0.1, 127), -127);
}

TEST(Grid, BitsToCodes) {
  EXPECT_EQ(max_code_of_bits(2), 1);
  EXPECT_EQ(max_code_of_bits(5), 15);
  EXPECT_EQ(max_code_of_bits(6), 31);
  EXPECT_EQ(max_code_of_bits(8), 127);
}

TEST(Grid, NearestRowsAreWithinHalfAStep) {
  Matrix weights = random_matrix(70, 33, 1, 3);
  RowScaledCodes coded = quantize_rows_to_nearest(weights, 127, "embedding");
  EXPECT_EQ(coded.max_code, 127);
  ASSERT_EQ(coded.row_scales.size(), 70U);
  for (int64_t r = 0; r < 70; ++r) {
    double scale = float_from_fp16(coded.row_scales[static_cast<size_t>(r)]);
    for (int64_t k = 0; k < 33; ++k) {
      double code = coded.codes[static_cast<size_t>(r * 33 + k)];
      // Half a step, and half a step more where fp16 rounded the scale down and the largest weight is clipped.
      ASSERT_LE(std::abs(weights(r, k) - code * scale), (std::abs(code) == 127 ? 1.0 : 0.5001) * scale);
    }
  }
}

TEST(Grid, OutlierSetsItsOwnRowOnly) {
  Matrix weights = random_matrix(3, 1000, 2, 3);
  std::vector<uint16_t> before = row_scales(weights, std::array{1.0}, 31, "w");
  weights(1, 77) = 1000;
  std::vector<uint16_t> after = row_scales(weights, std::array{1.0}, 31, "w");
  EXPECT_EQ(after[0], before[0]);
  EXPECT_EQ(after[1], fp16_from_float(1000.0F / 31));
  EXPECT_EQ(after[2], before[2]);
}

TEST(Grid, RefusesRowsThatFp16ScalesCannotReach) {
  Matrix weights(3, 4);
  weights(2, 1) = -1e9F;
  try {
    row_scales(weights, std::array{1.0}, 127, "far.weight");
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    EXPECT_THAT(error.what(), ::testing::AllOf(::testing::HasSubstr("far.weight"), ::testing::HasSubstr("row 2")));
  }
}

TEST(Grid, EmptyMatrices) {
  EXPECT_TRUE(quantize_rows_to_nearest(Matrix(0, 4), 127, "w").codes.empty());
  EXPECT_EQ(quantize_rows_to_nearest(Matrix(2, 0), 127, "w").row_scales, std::vector(2, row_scale(0, 127)));
}

}  // namespace
}  // namespace thimble::grid_test
