// quantized_model_test.cpp: dequantization, value by value.
#include "runtime/codes/quantized_model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/codes/trellis.h"

namespace thimble::quantized_model_test {
namespace {

TEST(StepSize, EveryPlatformsExp2GivesTheSameSizes) {
  for (int part = 0; part < kStepsPerOctave; ++part) {
    // An error of a few units in the last place of float64 leaves the nearest float32 as it is.
    double exact = std::exp2(part / 64.0);
    EXPECT_EQ(static_cast<float>(exact * (1 + 0x1p-48)), step_size(part)) << part;
    EXPECT_EQ(static_cast<float>(exact * (1 - 0x1p-48)), step_size(part)) << part;
  }
  EXPECT_EQ(step_size(64), 2.0f);
  EXPECT_EQ(step_size(-64), 0.5f);
  EXPECT_EQ(step_size(-1), 0.5f * step_size(63));
  EXPECT_EQ(step_size(-kMaxStep), 0x1p-40f);
}

// Level by level, from the definition: states by hand for the trellis of 4 states, h0 = 5, h1 = 2 (octal).
TEST(DequantizeStepped, FollowsTheTrellis) {
  SteppedCodes coded{2, {1, 0, 0, 1, -3, 2, 0, 0, 5, 0}, {0, 64, 0, 0, -64}, {0, 128}};
  // Column 0: codes 1, 0, -3, 0, 5 in states 0, 1, 2, 0, 0. Column 1: codes 0, 1, 2, 0, 0 in states 0, 0, 1, 2, 1.
  std::vector<float> expected = {2, 0, 2 * 1, 8 * 2, -6, 4 * 5, 0, 0, 5, 2};
  EXPECT_EQ(dequantize(QuantizedTensor{"a", {5, 2}, coded}), expected);
}

TEST(DequantizeStepped, WithoutATrellisLevelsAreEven) {
  SteppedCodes coded{0, {1, -2, 3, 0}, {0, 0}, {-64, -128}};
  EXPECT_EQ(dequantize(QuantizedTensor{"a", {2, 2}, coded}), (std::vector<float>{1, -1, 3, 0}));
}

TEST(DequantizeStepped, TrellisesBeginAgainEverySegment) {
  SteppedCodes coded{3, std::vector<int32_t>(kTrellisRows + 1, 1), std::vector<int16_t>(kTrellisRows + 1), {0}};
  std::vector<float> values = dequantize(QuantizedTensor{"a", {kTrellisRows + 1, 1}, coded});
  EXPECT_EQ(values.front(), 2);
  EXPECT_EQ(values.back(), 2);
  EXPECT_EQ(values[2], 2 + static_cast<int>(Trellis::set(Trellis(3).next(Trellis(3).next(0, 1), 1))));
}

// Segments of a large matrix are tasks: each gives what it gives alone.
TEST(DequantizeStepped, SegmentsOfLargeMatricesAreTheSameAlone) {
  constexpr int64_t kRows = 2 * kTrellisRows + 100, kColumns = 4096;
  SteppedCodes coded{4, {}, std::vector<int16_t>(kRows, 3), std::vector<int16_t>(kColumns, -5)};
  std::vector<int32_t> codes(static_cast<size_t>(kRows * kColumns));
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<int32_t>(i * 2654435761U % 15) - 7;
  coded.codes = CodeArray(codes);
  const std::vector<float> values = dequantize(QuantizedTensor{"a", {kRows, kColumns}, coded});
  for (int64_t first = 0; first < kRows; first += kTrellisRows) {
    const int64_t rows = std::min(kTrellisRows, kRows - first);
    const auto begin = static_cast<size_t>(first * kColumns), count = static_cast<size_t>(rows * kColumns);
    SteppedCodes segment{4, {}, std::vector<int16_t>(static_cast<size_t>(rows), 3), coded.column_steps};
    segment.codes = CodeArray(std::span(codes).subspan(begin, count));
    EXPECT_TRUE(std::ranges::equal(dequantize(QuantizedTensor{"a", {rows, kColumns}, segment}),
                                   std::span(values).subspan(begin, count)));
  }
  EXPECT_EQ(stored_matrix({"a", {kRows, kColumns}, coded}).dtype(), DType::kI8);
  coded.codes.store(codes.size() - 1, std::vector<int32_t>{100});
  EXPECT_EQ(stored_matrix({"a", {kRows, kColumns}, coded}).dtype(), DType::kI16);
}

using Floats = std::vector<float>;

// In the smallest type that holds all levels, of the values that dequantize() gives.
TEST(StoredMatrixOfCodes, HoldsTheValuesInFewBytes) {
  auto expect_stored = [](const QuantizedTensor& tensor, DType dtype, uint64_t owned_bytes) {
    const StoredMatrix stored = stored_matrix(tensor);
    EXPECT_EQ(stored.dtype(), dtype);
    EXPECT_EQ(stored.owned_bytes(), owned_bytes);
    const Matrix values = stored.widened();
    EXPECT_EQ((Shape{values.rows(), values.cols()}), tensor.shape);
    EXPECT_EQ(Floats(values.values().begin(), values.values().end()), dequantize(tensor));
  };
  constexpr uint64_t kFactors = 5 * sizeof(float);
  for (const auto& [code, dtype, bytes] : {std::tuple{63, DType::kI8, 6 + kFactors},
                                           {-64, DType::kI8, 6 + kFactors},
                                           {64, DType::kI16, 12 + kFactors},
                                           {-65, DType::kI16, 12 + kFactors},
                                           {16383, DType::kI16, 12 + kFactors},
                                           {-16384, DType::kI16, 12 + kFactors},
                                           {16384, DType::kF32, uint64_t{24}},
                                           {-16385, DType::kF32, uint64_t{24}}}) {
    SCOPED_TRACE(code);
    // The state after an odd code has its lowest bit set later: odd levels occur too.
    expect_stored({"a", {3, 2}, SteppedCodes{2, {1, 1, 0, 1, code, code}, {7, 64, -9}, {5, -130}}}, dtype, bytes);
  }
  expect_stored({"a", {2, 3}, RowScaledCodes{127, {-127, 0, 31, 1, 127, 2}, {0x3555, 0x0001}}}, DType::kI8,
                6 + kFactors);
  expect_stored({"a", {2, 1}, RawTensor{DType::kBF16, from_float32(DType::kBF16, Floats{1, -2})}}, DType::kBF16, 4);
}

TEST(QuantizedModel, BitsOfCodes) {
  const std::pair<int, int> expected[] = {{1, 2}, {2, 3}, {3, 3}, {7, 4}, {15, 5}, {31, 6}, {63, 7}, {64, 8}, {127, 8}};
  for (auto [max_code, bits] : expected) EXPECT_EQ(code_bits(max_code), bits) << max_code;
}

TEST(QuantizedModel, CodesTimesTheirRowsScale) {
  RowScaledCodes codes{31, {-31, 0, 31, 1, -1, 2}, {fp16_from_float(0.5f), fp16_from_float(0x1p-24f)}};
  EXPECT_EQ(dequantize({"a", {2, 3}, codes}), (Floats{-15.5f, 0, 15.5f, 0x1p-24f, -0x1p-24f, 0x1p-23f}));
}

// Every int8 code times every finite scale is exact in float32: the same on every machine.
TEST(QuantizedModel, ProductsAreExact) {
  RowScaledCodes coded{127, {}, {}};
  for (uint32_t bits = 1; bits < 0x7c00; bits += 7) coded.row_scales.push_back(static_cast<uint16_t>(bits));
  for (size_t r = 0; r < coded.row_scales.size(); ++r)
    for (int code = -127; code <= 127; ++code) coded.codes.push_back(static_cast<int8_t>(code));
  auto rows = static_cast<int64_t>(coded.row_scales.size());
  Floats values = dequantize({"a", {rows, 255}, coded});
  for (size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(double{values[i]}, static_cast<double>(coded.codes[i]) * float_from_fp16(coded.row_scales[i / 255]));
}

TEST(QuantizedModel, RowsAreTheFirstDimension) {
  RowScaledCodes codes{3, {1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3}, {0x3c00, 0x4000}};
  EXPECT_EQ(dequantize({"a", {2, 3, 2}, codes}), (Floats{1, 2, 3, 1, 2, 3, 2, 4, 6, 2, 4, 6}));
}

TEST(QuantizedModel, EmptyTensorsStayEmpty) {
  EXPECT_TRUE(dequantize({"a", {0, 5}, RowScaledCodes{15, {}, {}}}).empty());
  EXPECT_TRUE(dequantize({"a", {3, 0}, RowScaledCodes{15, {}, {0x3c00, 0x3c00, 0x3c00}}}).empty());
  EXPECT_TRUE(dequantize({"a", {0}, RawTensor{DType::kF16, {}}}).empty());
}

TEST(QuantizedModel, RawTensorsConvert) {
  EXPECT_EQ(dequantize({"a", {2}, RawTensor{DType::kF16, from_float32(DType::kF16, Floats{1.5f, -0.25f})}}),
            (Floats{1.5f, -0.25f}));
  EXPECT_EQ(dequantize({"a", {}, RawTensor{DType::kF32, from_float32(DType::kF32, Floats{0.1f})}}), (Floats{0.1f}));
}

TEST(QuantizedModel, EqualityLooksAtEverything) {
  QuantizedModel first;
  first.tensors.push_back({"a", {2}, RawTensor{DType::kF16, ByteVector(4)}});
  QuantizedModel second = first;
  EXPECT_EQ(first, second);
  second.banked = true;
  EXPECT_NE(first, second);
  second = first;
  std::get<RawTensor>(second.tensors[0].data).bytes[0] ^= std::byte{1};
  EXPECT_NE(first, second);
}

}  // namespace
}  // namespace thimble::quantized_model_test
