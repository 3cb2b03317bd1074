// fixed_point_test.cpp: Q1.15 and Q1.31 against the model in integers: every code, random floats, ties, what is not a
// number.
#include "runtime/tensor/rounding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <random>

#include "tests/runtime/tensor/fixed_point_model.h"

namespace thimble::fixed_point_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Codes and round trips of one float, bit for bit.
void expect_model(uint32_t bits) {
  auto x = std::bit_cast<float>(bits);
  int64_t q115 = fixed_point_code(bits, 15), q131 = fixed_point_code(bits, 31);
  ASSERT_EQ(float_to_q115(x), q115) << std::hexfloat << x;
  ASSERT_EQ(float_to_q131(x), q131) << std::hexfloat << x;
  ASSERT_EQ(std::bit_cast<uint32_t>(simulate_q115(x)), fixed_point_value(q115, 15)) << std::hexfloat << x;
  ASSERT_EQ(std::bit_cast<uint32_t>(simulate_q131(x)), fixed_point_value(q131, 31)) << std::hexfloat << x;
}
void expect_model(float x) { expect_model(std::bit_cast<uint32_t>(x)); }

TEST(FixedPoint, EveryCodeHasItsValueAndComesBackWithinTheLimits) {
  for (int32_t code = -32768; code <= 32767; ++code) {
    float value = float_from_q115(static_cast<int16_t>(code));
    ASSERT_EQ(std::bit_cast<uint32_t>(value), fixed_point_value(code, 15)) << code;
    ASSERT_EQ(float_to_q115(value), std::clamp(code, -32735, 32735)) << code;
    expect_model(value);
  }
}

// The middle between two codes, and the floats on both sides of it.
TEST(FixedPoint, TiesGoToEven) {
  for (int32_t code = -32735; code < 32735; ++code) {
    float middle = (static_cast<float>(code) + 0.5f) * 0x1p-15f;
    for (float x : {middle, std::nextafter(middle, kInfinity), std::nextafter(middle, -kInfinity)}) expect_model(x);
    ASSERT_EQ(float_to_q115(middle) % 2, 0) << code;
  }
}

TEST(FixedPoint, RandomFloats) {
  std::mt19937 random(11);
  for (int i = 0; i < 10'000'000; ++i) expect_model(static_cast<uint32_t>(random()));
}

// Random bits are seldom in the range where rounding happens.
TEST(FixedPoint, RandomFloatsBelowOne) {
  std::mt19937 random(12);
  for (int i = 0; i < 2'000'000; ++i) {
    auto bits = static_cast<uint32_t>(random());
    uint32_t exponent = 127 - 40 + bits % 41;
    expect_model((bits & 0x80000000u) | (exponent << 23) | (static_cast<uint32_t>(random()) & 0x7fffffu));
  }
}

TEST(FixedPoint, EdgeFloats) {
  using Limits = std::numeric_limits<float>;
  for (float x : {0.0f, Limits::denorm_min(), Limits::min(), Limits::max(), kInfinity, Limits::quiet_NaN(),
                  Limits::signaling_NaN(), 1.0f, 0.5f, kFixedPointLimit, std::nextafter(kFixedPointLimit, 0.0f),
                  std::nextafter(kFixedPointLimit, 1.0f), 0x1p-16f, 0x1.8p-15f, 0x1p-32f, 0x1.8p-31f, 0x1p-31f}) {
    expect_model(x);
    expect_model(-x);
  }
  EXPECT_EQ(float_to_q115(kInfinity), 32735);
  EXPECT_EQ(float_to_q115(-1.0f), -32735);
  EXPECT_EQ(float_to_q131(kInfinity), 2145336192);
  EXPECT_EQ(float_to_q115(Limits::quiet_NaN()), 0);
  EXPECT_FALSE(std::signbit(simulate_q115(-0.0f)));
}

TEST(FixedPoint, WideCodesRoundToTheNearestFloat) {
  std::mt19937 random(13);
  for (int i = 0; i < 1'000'000; ++i) {
    auto code = static_cast<int32_t>(random());
    ASSERT_EQ(std::bit_cast<uint32_t>(float_from_q131(code)), fixed_point_value(code, 31)) << code;
  }
  for (int32_t code :
       {0, 1, -1, 16777217, 16777219, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()})
    EXPECT_EQ(std::bit_cast<uint32_t>(float_from_q131(code)), fixed_point_value(code, 31)) << code;
}

}  // namespace
}  // namespace thimble::fixed_point_test
