// quantize_tensor_test.cpp: every precision, and what dequantization makes of it.
#include "gptq/trace/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "gptq/trace/grid.h"
#include "runtime/base/error.h"
#include "tests/gptq/statistics/gptq_samples.h"

namespace thimble::quantize_tensor_test {
namespace {

Tensor stored(const Matrix& matrix) {
  return {DType::kF32, {matrix.rows(), matrix.cols()}, from_float32(DType::kF32, matrix.values())};
}

TEST(QuantizeTensor, GptqGivesTheSolversCodes) {
  Matrix weights = random_matrix(5, 20, 1, 2);
  HessianFactor factor = factor_hessian(correlated_hessian(20, 2), 0.01, "w");
  SolvedTensor solved =
      quantize_tensor("w", stored(weights).view(), Precision::row_scaled(31, RoundingMethod::kGptq), &factor);
  EXPECT_EQ(solved.tensor.name, "w");
  EXPECT_EQ(solved.tensor.shape, (Shape{5, 20}));
  EXPECT_EQ(std::get<RowScaledCodes>(solved.tensor.data), solve_gptq(weights, factor, 31, "w").codes);
  ASSERT_TRUE(solved.report.has_value());
  std::vector<float> restored = dequantize(solved.tensor);
  double squared_error = 0;
  for (size_t i = 0; i < restored.size(); ++i) squared_error += std::pow(restored[i] - weights.values()[i], 2);
  EXPECT_NEAR(solved.report->weight_mse, squared_error / 100, 1e-9);
}

TEST(QuantizeTensor, NearestNeedsNoHessian) {
  Matrix weights = random_matrix(5, 20, 1, 2);
  SolvedTensor solved =
      quantize_tensor("w", stored(weights).view(), Precision::row_scaled(127, RoundingMethod::kNearest), nullptr);
  EXPECT_EQ(std::get<RowScaledCodes>(solved.tensor.data), quantize_rows_to_nearest(weights, 127, "w"));
  EXPECT_FALSE(solved.report.has_value());
}

TEST(QuantizeTensor, RawTensorsAreConvertedOrCopied) {
  Tensor floats{DType::kF32, {3}, from_float32(DType::kF32, std::vector<float>{1, -0.5F, 0.1F})};
  QuantizedTensor half = quantize_tensor("v", floats.view(), Precision::raw(DType::kF16), nullptr).tensor;
  EXPECT_THAT(dequantize(half), ::testing::ElementsAre(1, -0.5F, float_from_fp16(fp16_from_float(0.1F))));
  QuantizedTensor same = quantize_tensor("v", floats.view(), Precision::raw(DType::kF32), nullptr).tensor;
  EXPECT_EQ(std::get<RawTensor>(same.data).bytes, floats.bytes);
  Tensor integers{DType::kI64, {1}, ByteVector(8, std::byte{0x7f})};  // no float holds this one
  QuantizedTensor kept = quantize_tensor("i", integers.view(), Precision::raw(DType::kI64), nullptr).tensor;
  EXPECT_EQ(std::get<RawTensor>(kept.data), (RawTensor{DType::kI64, integers.bytes}));
}

TEST(QuantizeTensor, NamesAWeightThatIsNotFinite) {
  Matrix weights(3, 4);
  weights(1, 2) = std::numeric_limits<float>::quiet_NaN();
  try {
    quantize_tensor("bad.weight", stored(weights).view(), Precision::row_scaled(127, RoundingMethod::kNearest),
                    nullptr);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    EXPECT_THAT(error.what(),
                ::testing::AllOf(::testing::HasSubstr("bad.weight"), ::testing::HasSubstr("(1, 2) is nan")));
  }
}

TEST(QuantizeTensor, RefusesGptqWithoutAHessianAndCodesOfNonMatrices) {
  Tensor matrix = stored(Matrix(3, 4));
  EXPECT_THROW(quantize_tensor("w", matrix.view(), Precision::row_scaled(31, RoundingMethod::kGptq), nullptr), Error);
  matrix.shape = {12};
  EXPECT_THROW(quantize_tensor("w", matrix.view(), Precision::row_scaled(31, RoundingMethod::kNearest), nullptr),
               Error);
}

}  // namespace
}  // namespace thimble::quantize_tensor_test
