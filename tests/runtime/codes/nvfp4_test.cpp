// nvfp4_test.cpp: E2M1 and UE4M3 against models that search their tables of values in float64: every code, every middle
// between neighbours and the floats beside it, random bits, and what is not a number.
#include "runtime/codes/nvfp4.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace thimble::nvfp4_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

const std::vector<double> kE2m1Values = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

// Values of the codes 0 to 0x7e, from the definition.
std::vector<double> ue4m3_values() {
  std::vector<double> values;
  for (int exponent = 0; exponent < 16; ++exponent)
    for (int mantissa = 0; mantissa < 8; ++mantissa)
      values.push_back(exponent == 0 ? mantissa * std::exp2(-9) : (1 + mantissa / 8.0) * std::exp2(exponent - 7));
  values.pop_back();
  return values;
}

// The index of the nearest value, above all of them of the last; of two at the same distance the even one.
size_t nearest(const std::vector<double>& values, double x) {
  x = std::min(x, values.back());  // far away, float64 could not tell their distances apart
  size_t best = 0;
  for (size_t i = 1; i < values.size(); ++i) {
    const double distance = std::abs(x - values[i]), least = std::abs(x - values[best]);
    if (distance < least || (distance == least && i % 2 == 0)) best = i;
  }
  return best;
}

// Values, middles between them, and the floats on both sides; then whatever random bits mean.
std::vector<float> telling_floats(const std::vector<double>& values) {
  std::vector<float> floats = {0, 0x1p-149f, 1e30f, std::numeric_limits<float>::max()};
  for (size_t i = 0; i < values.size(); ++i)
    for (double x : {values[i], i > 0 ? (values[i - 1] + values[i]) / 2 : 0.0}) {
      auto f = static_cast<float>(x);
      EXPECT_EQ(double{f}, x);
      floats.insert(floats.end(), {f, std::nextafter(f, kInfinity), std::max(0.0f, std::nextafter(f, -kInfinity))});
    }
  std::mt19937 random(4);
  for (int i = 0; i < 300'000; ++i) {
    auto f = std::bit_cast<float>(static_cast<uint32_t>(random()) & 0x7fffffffu);
    if (std::isfinite(f)) floats.push_back(f);
    floats.push_back(std::ldexp(static_cast<float>(random() >> 8), -24 - static_cast<int>(random() % 16) + 10));
  }
  return floats;
}

TEST(Nvfp4, RoundingIsACodeAndBack) {
  for (float x : telling_floats(kE2m1Values))
    for (float signed_x : {x, -x}) {
      const float expected = float_from_e2m1(e2m1_from_float(signed_x));
      ASSERT_EQ(std::bit_cast<uint32_t>(rounded_to_e2m1(signed_x)), std::bit_cast<uint32_t>(expected)) << signed_x;
    }
  EXPECT_EQ(rounded_to_e2m1(kInfinity), 6);
  EXPECT_EQ(std::abs(rounded_to_e2m1(kNan)), 6);
}

TEST(Nvfp4, EveryE2m1CodeHasItsValueAndComesBack) {
  for (uint8_t code = 0; code < 16; ++code) {
    const float value = float_from_e2m1(code);
    EXPECT_EQ(std::abs(value), kE2m1Values[code & 7]);
    EXPECT_EQ(std::signbit(value), code >= 8);
    EXPECT_EQ(e2m1_from_float(value), code);
  }
}

TEST(Nvfp4, E2m1IsTheNearestValueTiesToEven) {
  for (float x : telling_floats(kE2m1Values)) {
    const auto code = static_cast<uint8_t>(nearest(kE2m1Values, x));
    ASSERT_EQ(e2m1_from_float(x), code) << std::hexfloat << x;
    ASSERT_EQ(e2m1_from_float(-x), code | kE2m1Sign) << std::hexfloat << x;
    ASSERT_EQ(e2m1_magnitude(double{x}), code) << std::hexfloat << x;
  }
}

TEST(Nvfp4, E2m1Saturates) {
  EXPECT_EQ(e2m1_from_float(kInfinity), 7);
  EXPECT_EQ(e2m1_from_float(-kInfinity), 15);
  EXPECT_EQ(e2m1_from_float(kNan), 7);
  EXPECT_EQ(e2m1_from_float(-kNan), 7);
}

TEST(Nvfp4, EveryUe4m3CodeHasItsValueAndComesBack) {
  const std::vector<double> values = ue4m3_values();
  ASSERT_EQ(values.size(), 127u);
  EXPECT_EQ(values.back(), kUe4m3Max);
  for (size_t code = 0; code < values.size(); ++code) {
    EXPECT_EQ(float_from_ue4m3(static_cast<uint8_t>(code)), values[code]);
    EXPECT_EQ(ue4m3_from_float(static_cast<float>(values[code])), code);
  }
  for (int code = 127; code < 256; ++code) EXPECT_TRUE(std::isnan(float_from_ue4m3(static_cast<uint8_t>(code))));
}

TEST(Nvfp4, Ue4m3IsTheNearestValueTiesToEven) {
  const std::vector<double> values = ue4m3_values();
  for (float x : telling_floats(values)) {
    ASSERT_EQ(ue4m3_from_float(x), nearest(values, x)) << std::hexfloat << x;
    ASSERT_EQ(ue4m3_from_float(-x), 0) << std::hexfloat << x;
  }
}

TEST(Nvfp4, Ue4m3SaturatesAndKeepsNan) {
  EXPECT_EQ(ue4m3_from_float(464), kUe4m3MaxCode);
  EXPECT_EQ(ue4m3_from_float(kInfinity), kUe4m3MaxCode);
  EXPECT_EQ(ue4m3_from_float(-kInfinity), 0);
  EXPECT_EQ(ue4m3_from_float(kNan), kUe4m3Nan);
}

}  // namespace
}  // namespace thimble::nvfp4_test
