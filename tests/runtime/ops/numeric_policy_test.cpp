// numeric_policy_test.cpp: the table of modes, and the NVFP4 grids against lists of their values.
#include "runtime/ops/numeric_policy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "runtime/base/random.h"
#include "runtime/codes/nvfp4.h"

namespace thimble::numeric_policy_test {
namespace {

float rounded_to_e2m1(float x) { return float_from_e2m1(e2m1_from_float(x)); }
float rounded_to_ue4m3(float x) { return float_from_ue4m3(ue4m3_from_float(x)); }

TEST(NumericPolicy, OnlyFp32IsExact) {
  for (Numerics numerics : kAllNumerics)
    EXPECT_EQ(numeric_policy(numerics).is_exact(), numerics == Numerics::kFp32) << numerics_name(numerics);
}

TEST(NumericPolicy, Sf16RoundsEveryBoundaryButTheSoftcap) {
  for (Numerics numerics : {Numerics::kSf16, Numerics::kSf16Legacy}) {
    const NumericPolicy policy = numeric_policy(numerics);
    const Format product = numerics == Numerics::kSf16 ? Format::kQ131Q115 : Format::kQ115;
    for (size_t i = 0; i < kBoundaries; ++i) {
      const auto boundary = static_cast<Boundary>(i);
      SCOPED_TRACE(boundary_name(boundary));
      if (boundary == Boundary::kCapped) {
        EXPECT_TRUE(policy.at(boundary).is_exact());
        continue;
      }
      const bool is_product =
          boundary == Boundary::kLinear || boundary == Boundary::kScores || boundary == Boundary::kLogits;
      EXPECT_EQ(policy.at(boundary), (Rounding{is_product ? product : Format::kQ115, Format::kBf16}));
    }
  }
  const NumericPolicy truth = numeric_policy(Numerics::kSf16), legacy = numeric_policy(Numerics::kSf16Legacy);
  EXPECT_EQ(truth.logits_scale, 1);
  EXPECT_EQ(truth.attention_scale, 1);
  EXPECT_EQ(truth.mlp_scale, 1);
  EXPECT_EQ(legacy.logits_scale, 24);
  EXPECT_EQ(legacy.attention_scale, 0.65f);
  EXPECT_EQ(legacy.mlp_scale, 0.75f);
}

TEST(NumericPolicy, TheWeightConstrainedModesDifferInTheirWeightsAlone) {
  for (auto [plain, constrained] :
       {std::pair{Numerics::kSf16, Numerics::kSf16Q115}, {Numerics::kSf16Legacy, Numerics::kSf16LegacyQ115}}) {
    NumericPolicy policy = numeric_policy(plain);
    EXPECT_EQ(policy.weights, (Rounding{Format::kFp32, Format::kBf16}));
    EXPECT_EQ(policy.vectors, policy.weights);
    policy.weights.value = policy.vectors.value = Format::kQ115;
    EXPECT_EQ(policy, numeric_policy(constrained));
  }
}

// The nearest value of a list whose neighbours alternate between even and odd codes, ties to the even one.
float nearest_of(const std::vector<float>& values, float x) {
  size_t best = 0;
  for (size_t i = 1; i < values.size(); ++i) {
    const double old_error = std::abs(double{values[best]} - x), error = std::abs(double{values[i]} - x);
    if (error < old_error || (error == old_error && i % 2 == 0)) best = i;
  }
  return values[best];
}

TEST(Fp4Blocks, E2m1IsTheNearestValue) {
  const std::vector<float> grid = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (int i = 0; i <= 7 * 64; ++i) {
    const float x = static_cast<float>(i) / 64;  // with every tie
    EXPECT_EQ(rounded_to_e2m1(x), nearest_of(grid, x)) << x;
    EXPECT_EQ(rounded_to_e2m1(-x), -nearest_of(grid, x)) << x;
  }
  EXPECT_EQ(rounded_to_e2m1(1e30f), 6);
}

TEST(Fp4Blocks, Ue4m3IsTheNearestValue) {
  std::vector<float> grid;  // codes 0 .. 0x7e
  for (int code = 0; code < 0x7f; ++code) {
    const int exponent = code >> 3, mantissa = code & 7;
    grid.push_back(exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                 : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10));
  }
  EXPECT_EQ(grid.back(), 448);
  for (size_t i = 0; i < grid.size(); ++i) {
    EXPECT_EQ(rounded_to_ue4m3(grid[i]), grid[i]);
    if (i == 0) continue;
    const float middle = (grid[i - 1] + grid[i]) / 2;  // exact
    for (float x : {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, 1e9f)})
      EXPECT_EQ(rounded_to_ue4m3(x), nearest_of(grid, x)) << x;
  }
  EXPECT_EQ(rounded_to_ue4m3(1e9f), 448);
}

// What staging makes of a block, with this tensor scale.
std::vector<float> staged_block(const std::vector<float>& x, float tensor_scale) {
  const float scale =
      float_from_ue4m3(nvfp4_block_scale(nvfp4_amax(x.data(), static_cast<int64_t>(x.size())), tensor_scale));
  std::vector<float> y;
  for (float value : x) y.push_back(float_from_e2m1(nvfp4_element(value, scale * tensor_scale)) * scale * tensor_scale);
  return y;
}

TEST(Nvfp4Block, KeepsWhatTheFormatHolds) {
  const std::vector<float> block = {0, 0.5, -1, 1.5, 2, -3, 4, 6, 0, 0, 0, -6, 1, 1, 1, -0.5}, zeros(16);
  EXPECT_EQ(staged_block(block, 1), block);
  EXPECT_EQ(staged_block(zeros, nvfp4_tensor_scale(0)), zeros);
  EXPECT_EQ(staged_block(block, 1e9f), zeros);  // the block's scale rounds to 0
}

TEST(Nvfp4Block, NothingThatIsNotFiniteIsHidden) {
  for (float bad : {NAN, INFINITY, -INFINITY}) {
    std::vector<float> block(16, 1.0f);
    block[3] = bad;
    const float amax = nvfp4_amax(block.data(), 16);
    EXPECT_FALSE(std::isfinite(amax)) << bad;
    for (float value : staged_block(block, nvfp4_tensor_scale(amax))) EXPECT_TRUE(std::isnan(value)) << bad;
  }
}

}  // namespace
}  // namespace thimble::numeric_policy_test
