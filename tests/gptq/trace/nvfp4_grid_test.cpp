// nvfp4_grid_test.cpp: block scales against a search over all 127, rounding against all 16 codes, awkward shapes.
#include "gptq/trace/grid.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/gptq/statistics/gptq_samples.h"

namespace thimble::nvfp4_grid_test {
namespace {

// Of one block: the least distance of each weight to any of the 16 values.
double least_squared_error(const float* weights, int64_t count, const Nvfp4BlockGrid& grid) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    double least = std::numeric_limits<double>::infinity();
    for (uint8_t code = 0; code < 16; ++code) least = std::min(least, std::abs(double{weights[i]} - grid.value(code)));
    sum += least * least;
  }
  return sum;
}

TEST(Nvfp4Grid, RoundsToTheNearestOfAllCodes) {
  const Nvfp4BlockGrid grid{0.875f, 0.37f};
  Matrix weights = random_matrix(1, 2000, 3, 0.8f);
  for (float weight : weights.values()) {
    double least = std::numeric_limits<double>::infinity();
    for (uint8_t code = 0; code < 16; ++code) least = std::min(least, std::abs(double{weight} - grid.value(code)));
    EXPECT_LE(std::abs(double{weight} - grid.value(grid.nearest(weight))), least * (1 + 1e-6) + 1e-9);
  }
  EXPECT_EQ(grid.nearest(1e-9), 0);
  EXPECT_EQ(grid.nearest(-1e-9), 0) << "never -0";
  EXPECT_EQ(grid.nearest(-100), 0xf);
  EXPECT_EQ((Nvfp4BlockGrid{0, 1}.nearest(5)), 0);
}

TEST(Nvfp4Grid, ScalesAreAsGoodAsTheBestOfAll) {
  Matrix weights = random_matrix(40, 40, 5, 0.1f);
  weights(3, 20) = 4;  // an outlier
  const Nvfp4Codes coded = quantize_nvfp4_to_nearest(weights);
  const Matrix back = dequantize_nvfp4(coded, 40, 40);
  int better = 0;
  for (int64_t r = 0; r < 40; ++r)
    for (int64_t b = 0; b < 3; ++b) {
      const int64_t begin = 16 * b, count = std::min<int64_t>(16, 40 - begin);
      double mine = 0, best = std::numeric_limits<double>::infinity();
      for (int64_t k = begin; k < begin + count; ++k) mine += std::pow(double{weights(r, k)} - back(r, k), 2);
      for (uint8_t scale = 0; scale <= kUe4m3MaxCode; ++scale)
        best = std::min(
            best, least_squared_error(weights.row(r) + begin, count, {float_from_ue4m3(scale), coded.tensor_scale}));
      EXPECT_LE(mine, best * 1.1 + 1e-15) << r << ' ' << b;
      better += mine <= best * (1 + 1e-9);
    }
  EXPECT_GE(better, 115) << "nearly always the very best";
}

TEST(Nvfp4Grid, AwkwardMatrices) {
  EXPECT_EQ(quantize_nvfp4_to_nearest(Matrix(3, 17)), nvfp4_zeros(3, 17)) << "zeros";
  EXPECT_EQ(quantize_nvfp4_to_nearest(Matrix(0, 5)), nvfp4_zeros(0, 5));
  EXPECT_EQ(quantize_nvfp4_to_nearest(Matrix(5, 0)), nvfp4_zeros(5, 0));
  for (float size : {1e-45f, 1e-38f, 1.0f, 0x1p127f}) {
    Matrix constant(2, 33);
    for (float& value : constant.values()) value = -size;
    const Nvfp4Codes coded = quantize_nvfp4_to_nearest(constant);
    EXPECT_LE(coded.tensor_scale, kMaxNvfp4TensorScale);
    const Matrix back = dequantize_nvfp4(coded, 2, 33);
    for (float value : back.values()) {
      EXPECT_TRUE(std::isfinite(value));
      if (size >= 1e-37f) {
        EXPECT_NEAR(value / -size, 1, 1e-6);
      }
    }
  }
}

}  // namespace
}  // namespace thimble::nvfp4_grid_test
