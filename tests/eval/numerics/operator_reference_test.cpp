// operator_reference_test.cpp: the float64 reference against values worked out by other means. A wrong reference is
// worse than none.
#include "eval/numerics/operator_reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "eval/numerics/operator_cases.h"

namespace thimble::operator_reference_test {
namespace {

std::vector<double> reference(OperatorCall call, const std::vector<float>& x, int64_t rows) {
  ByteVector stored = from_float32(call.in, x);
  call.rows = rows;
  call.cols = static_cast<int64_t>(x.size()) / rows;
  call.x = stored.data();
  std::vector<double> y(static_cast<size_t>(call.output_count()));
  operator_reference(call, y);
  return y;
}

OperatorCall call_of(Operator op) {
  OperatorCall call;
  call.op = op;
  return call;
}

TEST(OperatorReference, Softmax) {
  std::vector<double> y = reference(call_of(Operator::kSoftmax), {0, 1, 2}, 1);
  EXPECT_NEAR(y[0], 0.09003057317038046, 1e-16);
  EXPECT_NEAR(y[1], 0.24472847105479764, 1e-16);
  EXPECT_NEAR(y[2], 0.6652409557748218, 1e-16);
  y = reference(call_of(Operator::kSoftmax), {80, -80}, 1);
  EXPECT_NEAR(y[1] / std::exp(-160.0), 1, 1e-14);
}

TEST(OperatorReference, DequantizeSoftmaxScalesTheCodes) {
  std::vector<int8_t> codes = {0, 1, 2, 0, 10, 20};
  std::vector<float> scale = {1, 0.125f};
  OperatorCall call = call_of(Operator::kDequantizeSoftmax);
  call.in = DType::kI8;
  call.rows = 2;
  call.cols = 3;
  call.x = codes.data();
  call.scale = scale.data();
  std::vector<double> y(6);
  operator_reference(call, y);
  EXPECT_NEAR(y[2], 0.6652409557748218, 1e-16);
  EXPECT_NEAR(y[4] / y[3], std::exp(1.25), 1e-14);
}

TEST(OperatorReference, Norms) {
  std::vector<float> weight = {2, 1}, bias = {0, 5};
  OperatorCall call = call_of(Operator::kRmsNorm);
  call.epsilon = 1.5f;
  std::vector<double> y = reference(call, {3, 4}, 1);  // mean square 12.5
  EXPECT_NEAR(y[0], 3 / std::sqrt(14.0), 1e-15);
  call = call_of(Operator::kLayerNorm);
  call.weight = weight.data();
  call.bias = bias.data();
  y = reference(call, {3, 5, 10, 20}, 2);
  EXPECT_NEAR(y[0], -2, 1e-15);
  EXPECT_NEAR(y[1], 6, 1e-15);
  EXPECT_NEAR(y[2], -2, 1e-15);
}

TEST(OperatorReference, Elements) {
  std::vector<double> y = reference(call_of(Operator::kGelu), {1, -1, -5}, 1);
  EXPECT_NEAR(y[0], 0.8411919906082768, 1e-15);
  EXPECT_NEAR(y[1], -0.15880800939172324, 1e-15);
  // 1 + tanh(u) has lost half its digits here: compared as 2 / (1 + exp(-2u)).
  double u = std::sqrt(2 / M_PI) * (5 + 0.044715 * 125);
  EXPECT_NEAR(y[2] * (1 + std::exp(2 * u)) / -5, 1, 1e-13);
  OperatorCall call = call_of(Operator::kSoftcap);
  call.cap = 30;
  y = reference(call, {15, -3000}, 1);
  EXPECT_NEAR(y[0], 30 * 0.46211715726000975, 1e-14);
  EXPECT_EQ(y[1], -30);
}

TEST(OperatorReference, CrossEntropy) {
  std::vector<int32_t> targets = {2, 0};
  OperatorCall call = call_of(Operator::kCrossEntropy);
  call.targets = targets.data();
  std::vector<double> nll = reference(call, {0, 1, 2, 0, 0, 0}, 2);
  EXPECT_NEAR(nll[0], 0.4076059644443804, 1e-15);
  EXPECT_NEAR(nll[1], std::log(3.0), 1e-15);
}

TEST(OperatorInput, FillsWhatItSays) {
  for (DType in : {DType::kF16, DType::kBF16}) {
    OperatorCase subnormal{4, 33, OperatorFill::kSubnormal, 0};
    OperatorInput input(Operator::kSoftmax, in, subnormal, 7);
    Bytes stored(static_cast<const std::byte*>(input.call(DType::kF32, nullptr).x), 4 * 33 * 2);
    int nonzero = 0;
    for (float value : to_float32(in, stored)) {
      EXPECT_LE(std::abs(value), in == DType::kF16 ? 0x1p-14f : 0x1p-126f);
      nonzero += value != 0;
    }
    EXPECT_GT(nonzero, 100);
  }
  OperatorCase uniform{4, 1000, OperatorFill::kUniform, 10};
  OperatorInput input(Operator::kDequantizeSoftmax, DType::kI8, uniform, 7);
  OperatorCall call = input.call(DType::kF16, nullptr);
  EXPECT_FLOAT_EQ(call.scale[3] * 127, 10);
  EXPECT_EQ(operator_bytes(call), 4 * 1000 * 3 + 4 * sizeof(float));
  std::vector<float> codes = to_float32(DType::kI8, Bytes(static_cast<const std::byte*>(call.x), 4000));
  EXPECT_GT(*std::ranges::max_element(codes), 120);
  EXPECT_NEAR(std::accumulate(codes.begin(), codes.end(), 0.0) / 4000, 0, 5);
}

}  // namespace
}  // namespace thimble::operator_reference_test
