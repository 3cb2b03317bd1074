// dtype_test.cpp: half formats code by code, rounding against a reference in float64, and stored elements.
#include "runtime/tensor/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "tests/runtime/base/error_matcher.h"

namespace thimble::dtype_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// A binary format with `fraction_bits` and the exponents [min_exponent, max_exponent] of normal numbers.
struct HalfFormat {
  int fraction_bits, min_exponent, max_exponent;
  uint16_t (*encode)(float);
  float (*decode)(uint16_t);
};
const HalfFormat kFp16 = {10, -14, 15, fp16_from_float, float_from_fp16};
const HalfFormat kBf16 = {7, -126, 127, bf16_from_float, float_from_bf16};

// The format's value nearest to x, ties to even. Every step is exact in float64 but the one rounding of nearbyint.
double rounded(const HalfFormat& format, float x) {
  if (x == 0 || std::isinf(x)) return x;
  int exponent = std::max(std::ilogb(x), format.min_exponent);
  double unit = std::ldexp(1.0, exponent - format.fraction_bits);
  double value = std::nearbyint(static_cast<double>(x) / unit) * unit;
  bool overflows = std::abs(value) >= std::ldexp(1.0, format.max_exponent + 1);
  return overflows ? std::copysign(std::numeric_limits<double>::infinity(), x) : value;
}

void expect_rounded(const HalfFormat& format, float x) {
  double found = format.decode(format.encode(x)), expected = rounded(format, x);
  ASSERT_EQ(found, expected) << std::hexfloat << x;
  ASSERT_EQ(std::signbit(found), std::signbit(x)) << std::hexfloat << x;
}

// What a code means, from the definition of the format.
double value_of_code(const HalfFormat& format, uint16_t code) {
  int fraction = code & ((1 << format.fraction_bits) - 1);
  int biased = (code & 0x7fff) >> format.fraction_bits;
  int bias = format.max_exponent;
  double sign = code & 0x8000 ? -1.0 : 1.0;
  if (biased == 0) return sign * std::ldexp(fraction, format.min_exponent - format.fraction_bits);
  if (biased > 2 * bias) return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : double{kNaN};
  return sign * std::ldexp((1 << format.fraction_bits) + fraction, biased - bias - format.fraction_bits);
}

class Half : public ::testing::TestWithParam<HalfFormat> {};
INSTANTIATE_TEST_SUITE_P(DType, Half, ::testing::Values(kFp16, kBf16),
                         [](const auto& format) { return format.index == 0 ? "Fp16" : "Bf16"; });

TEST_P(Half, EveryCodeHasItsValueAndRoundTrips) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    auto code = static_cast<uint16_t>(bits);
    double expected = value_of_code(GetParam(), code);
    float value = GetParam().decode(code);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_TRUE(std::isnan(GetParam().decode(GetParam().encode(value)))) << bits;
      continue;
    }
    ASSERT_EQ(value, expected) << bits;
    ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << bits;
    ASSERT_EQ(GetParam().encode(value), code);
  }
}

// The middle between neighbouring codes and the floats on both sides of it.
TEST_P(Half, TiesGoToEvenAndTheirNeighboursToTheNearest) {
  const HalfFormat& format = GetParam();
  for (uint16_t code = 0; std::isfinite(format.decode(code)); ++code) {
    double low = format.decode(code), high = format.decode(static_cast<uint16_t>(code + 1));
    if (std::isinf(high)) high = std::ldexp(1.0, format.max_exponent + 1);
    auto middle = static_cast<float>((low + high) / 2);
    for (float x : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, kInfinity)}) {
      expect_rounded(format, x);
      expect_rounded(format, -x);
    }
    ASSERT_EQ(format.encode(middle) % 2, 0) << code;
  }
}

TEST_P(Half, RandomFloatsRoundToNearest) {
  std::mt19937 random(5);
  for (int i = 0; i < 1'000'000; ++i) {
    auto x = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(GetParam().decode(GetParam().encode(x))));
    } else {
      expect_rounded(GetParam(), x);
    }
  }
}

// Rounding to nearest: at most 2^-11 (fp16) or 2^-8 (bf16) of a normal number, half of the smallest step below them.
// Both are reached, so that neither bound is loose.
TEST_P(Half, ErrorsAreAtMostHalfAStep) {
  const HalfFormat& format = GetParam();
  double unit_roundoff = std::ldexp(1.0, -format.fraction_bits - 1);
  double half_step = std::ldexp(1.0, format.min_exponent - format.fraction_bits - 1);
  double worst_relative = 0, worst_absolute = 0;
  for (uint16_t code = 0; std::isfinite(format.decode(static_cast<uint16_t>(code + 1))); ++code) {
    double low = format.decode(code), high = format.decode(static_cast<uint16_t>(code + 1));
    for (double share : {0.25, 0.5, 0.75}) {
      auto x = static_cast<float>(low + share * (high - low));
      double error = std::abs(format.decode(format.encode(x)) - double{x});
      if (x >= std::ldexp(1.0, format.min_exponent))
        worst_relative = std::max(worst_relative, error / x);
      else
        worst_absolute = std::max(worst_absolute, error);
    }
  }
  EXPECT_LE(worst_relative, unit_roundoff);
  EXPECT_GT(worst_relative, 0.99 * unit_roundoff);
  EXPECT_EQ(worst_absolute, half_step);
}

TEST_P(Half, EdgeFloats) {
  using Limits = std::numeric_limits<float>;
  for (float x : {0.0f,
                  Limits::denorm_min(),
                  Limits::min(),
                  Limits::max(),
                  kInfinity,
                  0x1p-24f,
                  0x1p-25f,
                  0x1.8p-25f,
                  0x1.fffffep-26f,
                  65504.0f,
                  65519.996f,
                  65520.0f,
                  65536.0f,
                  1.0f + Limits::epsilon(),
                  0x1p-133f,
                  0x1p-134f,
                  0x1.fffffep127f,
                  0x1.fep127f,
                  0x1.ff0p127f,
                  0x1.feffffp127f}) {
    expect_rounded(GetParam(), x);
    expect_rounded(GetParam(), -x);
  }
}

// A signalling NaN whose payload lies in the dropped bits must not become an infinity.
TEST_P(Half, NanStaysNan) {
  for (uint32_t bits : {0x7fc00000u, 0x7f800001u, 0xff800001u, 0x7f801fffu, 0x7fffffffu, 0xffffffffu})
    EXPECT_TRUE(std::isnan(GetParam().decode(GetParam().encode(std::bit_cast<float>(bits))))) << bits;
}

TEST(DType, KnownHalfCodes) {
  EXPECT_EQ(fp16_from_float(1.0f), 0x3c00);
  EXPECT_EQ(fp16_from_float(-2.0f), 0xc000);
  EXPECT_EQ(fp16_from_float(65504.0f), 0x7bff);
  EXPECT_EQ(fp16_from_float(0x1p-24f), 0x0001);
  EXPECT_EQ(fp16_from_float(0x1p-25f), 0x0000);
  EXPECT_EQ(fp16_from_float(-0.0f), 0x8000);
  EXPECT_EQ(fp16_from_float(65520.0f), 0x7c00);
  EXPECT_EQ(bf16_from_float(1.0f), 0x3f80);
  EXPECT_EQ(bf16_from_float(-0.0f), 0x8000);
  EXPECT_EQ(bf16_from_float(kInfinity), 0x7f80);
}

constexpr DType kAllDTypes[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kI64, DType::kI32,
                                DType::kI16, DType::kI8,  DType::kU16, DType::kU8,   DType::kBool};

TEST(DType, NamesSizesAndKinds) {
  const std::string_view names[] = {"F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U16", "U8", "BOOL"};
  const size_t bytes[] = {8, 4, 2, 2, 8, 4, 2, 1, 2, 1, 1};
  for (size_t i = 0; i < std::size(kAllDTypes); ++i) {
    EXPECT_EQ(dtype_name(kAllDTypes[i]), names[i]);
    EXPECT_EQ(dtype_from_name(names[i], "file"), kAllDTypes[i]);
    EXPECT_EQ(dtype_bytes(kAllDTypes[i]), bytes[i]);
    EXPECT_EQ(is_floating(kAllDTypes[i]), i < 4);
  }
}

TEST(DType, AnUnknownNameIsAnErrorThatListsTheKnown) {
  expect_error<FormatError>([] { dtype_from_name("F8_E4M3", "model.safetensors: tensor 'a'"); },
                            {"model.safetensors: tensor 'a'", "'F8_E4M3'", "F64, F32, F16, BF16", "BOOL"});
  EXPECT_THROW(dtype_from_name("f32", "file"), FormatError);
  EXPECT_THROW(dtype_from_name("", "file"), FormatError);
}

// Little-endian bytes of integers.
template <typename T>
ByteVector stored(std::initializer_list<T> values) {
  ByteVector bytes;
  for (T value : values) append_little_endian(bytes, value);
  return bytes;
}

using Floats = std::vector<float>;

TEST(DType, IntegersConvertToTheNearestFloat) {
  EXPECT_EQ(to_float32(DType::kI8, stored<int8_t>({-128, 0, 127})), (Floats{-128, 0, 127}));
  EXPECT_EQ(to_float32(DType::kU8, stored<uint8_t>({0, 255})), (Floats{0, 255}));
  EXPECT_EQ(to_float32(DType::kBool, stored<uint8_t>({0, 1})), (Floats{0, 1}));
  EXPECT_EQ(to_float32(DType::kI16, stored<int16_t>({-32768, 32767})), (Floats{-32768, 32767}));
  EXPECT_EQ(to_float32(DType::kU16, stored<uint16_t>({0, 65535})), (Floats{0, 65535}));
  // 2^24 + 1 and 2^24 + 3 lie between floats: ties to even.
  EXPECT_EQ(to_float32(DType::kI32, stored<int32_t>({16777217, 16777219, std::numeric_limits<int32_t>::min()})),
            (Floats{16777216, 16777220, -2147483648.0f}));
  EXPECT_EQ(to_float32(DType::kI64, stored<int64_t>({std::numeric_limits<int64_t>::max(), -16777217})),
            (Floats{0x1p63f, -16777216}));
}

TEST(DType, FloatsReadTheirStoredBits) {
  EXPECT_EQ(to_float32(DType::kF32, stored<uint32_t>({0x3f800000, 0x00000001})), (Floats{1.0f, 0x1p-149f}));
  EXPECT_EQ(to_float32(DType::kF16, stored<uint16_t>({0x3c00, 0x0001})), (Floats{1.0f, 0x1p-24f}));
  EXPECT_EQ(to_float32(DType::kBF16, stored<uint16_t>({0x3f80, 0xc000})), (Floats{1.0f, -2.0f}));
  ByteVector wide = stored<uint64_t>(
      {std::bit_cast<uint64_t>(0.1), std::bit_cast<uint64_t>(1.0 + 0x1p-24), std::bit_cast<uint64_t>(1.0 + 0x3p-24)});
  EXPECT_EQ(to_float32(DType::kF64, wide), (Floats{0.1f, 1.0f, 1.0f + 0x1p-22f}));
  EXPECT_TRUE(to_float32(DType::kF32, {}).empty());
}

TEST(DType, FloatStorageRoundTrips) {
  const Floats exact = {0.0f, -0.0f, 1.0f, -1.5f, 0.25f, 96.0f, kInfinity, -kInfinity};
  for (DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    ByteVector bytes = from_float32(dtype, exact);
    EXPECT_EQ(bytes.size(), exact.size() * dtype_bytes(dtype));
    Floats back = to_float32(dtype, bytes);
    for (size_t i = 0; i < exact.size(); ++i)
      EXPECT_EQ(std::bit_cast<uint32_t>(back[i]), std::bit_cast<uint32_t>(exact[i])) << dtype_name(dtype) << i;
    EXPECT_TRUE(std::isnan(to_float32(dtype, from_float32(dtype, Floats{kNaN}))[0]));
  }
  std::mt19937 random(9);
  for (int i = 0; i < 1000; ++i) {
    auto x = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isnan(x)) continue;
    EXPECT_EQ(to_float32(DType::kF32, from_float32(DType::kF32, Floats{x}))[0], x);
    EXPECT_EQ(to_float32(DType::kF64, from_float32(DType::kF64, Floats{x}))[0], x);
  }
}

TEST(DType, FloatsAreNeverStoredAsIntegers) {
  EXPECT_THROW(from_float32(DType::kI8, Floats{1.0f}), Error);
  EXPECT_THROW(from_float32(DType::kBool, Floats{1.0f}), Error);
}

}  // namespace
}  // namespace thimble::dtype_test
