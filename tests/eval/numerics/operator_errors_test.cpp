// operator_errors_test.cpp: a comparison that lets wrong results pass would prove nothing.
#include "eval/numerics/operator_reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace thimble::operator_errors_test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
const ErrorBound kSoftmaxBound = error_bound(Operator::kSoftmax);

// Exact results, rounded to float32.
struct Sample {
  std::vector<double> reference;
  std::vector<float> found;
  explicit Sample(size_t count) {
    for (size_t i = 0; i < count; ++i) reference.push_back(1 / (3.0 + static_cast<double>(i)));
    found.assign(reference.begin(), reference.end());
  }
  OperatorErrors errors(DType out = DType::kF32) const {
    return compare_with_reference(found, reference, out, kSoftmaxBound);
  }
};

TEST(OperatorErrors, RoundingAloneIsWithinBounds) {
  Sample sample(100'000);
  OperatorErrors errors = sample.errors();
  EXPECT_TRUE(errors.passed());
  EXPECT_EQ(errors.found.max_absolute, errors.rounding.max_absolute);
  EXPECT_EQ(errors.found.mean_relative, errors.rounding.mean_relative);
  EXPECT_LE(errors.found.max_relative, 0x1p-24);
  EXPECT_GT(errors.found.max_relative, 0x1p-26);
}

TEST(OperatorErrors, OneWrongElementFails) {
  for (size_t wrong : {size_t{0}, size_t{40'000}, size_t{99'999}}) {
    Sample sample(100'000);
    sample.found[wrong] *= 1 + 1.1e-5f;  // relative 1e-5 is allowed
    OperatorErrors errors = sample.errors();
    EXPECT_FALSE(errors.passed());
    EXPECT_EQ(errors.worst_index, static_cast<int64_t>(wrong));
    EXPECT_NEAR(errors.worst_share, 1.1, 0.02);
    sample.found[wrong] = static_cast<float>(sample.reference[wrong] * (1 + 0.9e-5));
    EXPECT_TRUE(sample.errors().passed() || sample.reference[wrong] > 0.3);
  }
  Sample sample(4);
  sample.found[0] += 6e-6f;  // absolute 5e-6 is allowed; relative it is more than 1e-5 too
  EXPECT_FALSE(sample.errors().passed());
}

TEST(OperatorErrors, HalvesMayBeOffByHalfAUnit) {
  Sample sample(1000);
  for (float& value : sample.found) value = float_from_fp16(fp16_from_float(value));
  OperatorErrors errors = sample.errors(DType::kF16);
  EXPECT_TRUE(errors.passed());
  EXPECT_EQ(errors.found.max_absolute, errors.rounding.max_absolute);
  EXPECT_FALSE(sample.errors(DType::kF32).passed());
  // The neighbour on the wrong side.
  uint16_t bits = fp16_from_float(sample.found[0]);
  bool is_above = sample.found[0] > sample.reference[0];
  sample.found[0] = float_from_fp16(static_cast<uint16_t>(is_above ? bits - 1 : bits + 1));
  EXPECT_FALSE(sample.errors(DType::kF16).passed());
}

TEST(OperatorErrors, NotFiniteIsCountedAndPlaced) {
  Sample sample(70'000);
  sample.found[50'000] = std::numeric_limits<float>::infinity();
  sample.found[60'000] = sample.found[60'001] = kNaN;
  OperatorErrors errors = sample.errors();
  EXPECT_FALSE(errors.passed());
  EXPECT_EQ(errors.nan_count, 2);
  EXPECT_EQ(errors.infinity_count, 1);
  EXPECT_EQ(errors.first_non_finite, 50'000);
  EXPECT_LE(errors.worst_share, 1);
}

TEST(OperatorErrors, BelowTheSmallestNormalOnlyAbsolute) {
  std::vector<double> reference = {0x1p-130, 1e-60};
  std::vector<float> found = {0x1p-131f, 0};
  OperatorErrors errors = compare_with_reference(found, reference, DType::kF32, {1, 0.1, 0, 0});
  EXPECT_TRUE(errors.passed());
  EXPECT_EQ(errors.found.max_relative, 0x1p-131 / 0x1p-126);
  found[0] = 0x1p-125f;
  EXPECT_FALSE(compare_with_reference(found, reference, DType::kF32, {1, 0.1, 0, 0}).passed());
}

}  // namespace
}  // namespace thimble::operator_errors_test
