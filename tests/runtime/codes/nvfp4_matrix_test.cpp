// nvfp4_matrix_test.cpp: values of codes, staging, and products against float64; the uniform test.
#include "runtime/codes/nvfp4_matrix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "runtime/codes/quantized_model.h"
#include "tests/runtime/codes/random_nvfp4.h"

namespace thimble::nvfp4_matrix_test {
namespace {

TEST(Nvfp4Matrix, UniformCodesMultiplyToExactly72) {
  for (int64_t rows : {1, 20, 128}) {
    const Nvfp4Codes a = uniform_nvfp4(rows, 32), b = uniform_nvfp4(64, 32);
    const Matrix c = multiply_nvfp4(a, rows, b, 64, 32);
    for (float value : c.values()) EXPECT_EQ(value, 72);
  }
}

TEST(Nvfp4Matrix, ValuesAreElementTimesBlockScaleTimesTensorScale) {
  Nvfp4Codes coded = nvfp4_zeros(2, 17);
  coded.tensor_scale = 0.3f;
  coded.block_scales = {0x38, 0x40, 0x01, 0x7e};  // 1, 2, 2^-9, 448
  set_nvfp4_code(coded, 9, 0, 0, 0x1);
  set_nvfp4_code(coded, 9, 0, 1, 0xf);
  set_nvfp4_code(coded, 9, 0, 16, 0x3);
  set_nvfp4_code(coded, 9, 1, 15, 0x7);
  set_nvfp4_code(coded, 9, 1, 16, 0xe);
  const Matrix values = dequantize_nvfp4(coded, 2, 17);
  EXPECT_EQ(values(0, 0), 0.5f * 0.3f);
  EXPECT_EQ(values(0, 1), -6.0f * 0.3f);
  EXPECT_EQ(values(0, 2), 0.0f);
  EXPECT_EQ(values(0, 16), 3.0f * 0.3f);
  EXPECT_EQ(values(1, 15), 0x6p-9f * 0.3f);
  EXPECT_EQ(values(1, 16), -1792.0f * 0.3f);
  EXPECT_EQ(dequantize({"w", {2, 17}, coded}), std::vector<float>(values.data(), values.data() + 34));
  EXPECT_TRUE(dequantize({"w", {0, 17}, nvfp4_zeros(0, 17)}).empty());
}

TEST(Nvfp4Matrix, StagingRoundsEveryElementToANeighbour) {
  for (float size : {1e-30f, 1e-3f, 1.0f, 1e30f}) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    Matrix values(33, 50);
    for (int64_t r = 0; r < values.rows(); ++r)
      for (int64_t k = 0; k < values.cols(); ++k)
        values(r, k) = r == 5 ? 0 : normal(random) * size * std::exp2(static_cast<float>(r % 4));
    const Nvfp4Codes staged = stage_nvfp4(values);
    const Matrix back = dequantize_nvfp4(staged, 33, 50);
    for (int64_t r = 0; r < values.rows(); ++r)
      for (int64_t k = 0; k < values.cols(); ++k) {
        const float scale = float_from_ue4m3(staged.block_scales[static_cast<size_t>(r * 4 + k / 16)]);
        const double step = double{scale} * staged.tensor_scale, x = std::abs(double{values(r, k)}) / step;
        if (r == 5) {
          ASSERT_EQ(back(r, k), 0);
          continue;
        }
        ASSERT_LT(x, 6.5);
        const double half_gap = x < 2 ? 0.25 : x < 4 ? 0.5 : 1;
        ASSERT_LE(std::abs(double{back(r, k)} - values(r, k)), half_gap * step * (1 + 1e-6)) << r << ' ' << k;
      }
  }
}

TEST(Nvfp4Matrix, StagingUsesTheWholeRange) {
  Matrix values(2, 32);
  values(0, 3) = -5;
  values(1, 20) = 0.001f;
  const Nvfp4Codes staged = stage_nvfp4(values);
  EXPECT_EQ(staged.block_scales[0], kUe4m3MaxCode);
  EXPECT_EQ(nvfp4_code(staged, 16, 0, 3), 0xf);
  EXPECT_EQ(staged.block_scales[1], 0);
  EXPECT_EQ(staged.block_scales[2], 0);
  EXPECT_GT(staged.block_scales[3], 0);
  EXPECT_EQ(stage_nvfp4(Matrix(3, 5)), nvfp4_zeros(3, 5)) << "zeros";
}

TEST(Nvfp4Matrix, ProductsAreThoseOfTheValues) {
  for (int64_t k : {1, 15, 16, 17, 32, 100, 1040}) {
    const int64_t m = 21, n = 13;
    const Nvfp4Codes a = random_nvfp4(m, k, 1, 0.01f), b = random_nvfp4(n, k, 2, 3);
    const Matrix x = dequantize_nvfp4(a, m, k), w = dequantize_nvfp4(b, n, k);
    const Matrix c = multiply_nvfp4(a, m, b, n, k);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        double exact = 0, magnitude = 0;
        for (int64_t e = 0; e < k; ++e) {
          exact += double{x(i, e)} * w(j, e);
          magnitude += std::abs(double{x(i, e)} * w(j, e));
        }
        // A rounding per block, one of each dequantized operand, one of the result.
        EXPECT_LE(std::abs(c(i, j) - exact), magnitude * 0x1p-24 * static_cast<double>(nvfp4_blocks(k) + 4));
      }
  }
}

}  // namespace
}  // namespace thimble::nvfp4_matrix_test
