// stored_matrix_test.cpp: values of matrices as they are stored, what they own, and for how long.
#include "runtime/tensor/stored_matrix.h"

#include <gtest/gtest.h>

#include <bit>
#include <numeric>

#include "tests/runtime/tensor/stored_values.h"

namespace thimble::stored_matrix_test {
namespace {

// Bytes of every 16-bit pattern, `offset` bytes behind an aligned address.
ByteVector every_pattern(size_t offset) {
  ByteVector bytes(offset);
  for (uint32_t bits = 0; bits < 65536; ++bits) append_little_endian(bytes, static_cast<uint16_t>(bits));
  return bytes;
}

std::vector<uint32_t> bits_of(std::span<const float> values) {
  std::vector<uint32_t> bits;
  for (float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

TEST(StoredMatrix, WidensEveryPatternAtAnyAddress) {
  for (const DType dtype : {DType::kBF16, DType::kF16})
    for (const size_t offset : {0, 1, 2}) {
      const ByteVector bytes = every_pattern(offset);
      const Bytes elements = Bytes(bytes).subspan(offset);
      const StoredMatrix matrix({dtype, {256, 256}, elements}, 256, 256, nullptr);
      EXPECT_EQ(matrix.dtype(), dtype);
      EXPECT_EQ(matrix.owned_bytes(), 0u);
      EXPECT_EQ(bits_of(matrix.widened().values()), bits_of(to_float32(dtype, elements)));
    }
}

TEST(StoredMatrix, OthersThanFloatsOf32BitsAreConverted) {
  const std::vector<float> values = {1, -2, 3, 4, 5, -6};
  for (const DType dtype : {DType::kF64, DType::kF32}) {
    const ByteVector bytes = from_float32(dtype, values);
    const StoredMatrix matrix({dtype, {2, 3}, bytes}, 2, 3, nullptr);
    EXPECT_EQ(matrix.dtype(), DType::kF32);
    EXPECT_EQ(matrix.owned_bytes(), dtype == DType::kF32 ? 0 : 6 * sizeof(float));
    EXPECT_EQ(values_of(matrix), values);
  }
  ByteVector shifted(1);
  append_bytes(shifted, from_float32(DType::kF32, values));
  const StoredMatrix matrix({DType::kF32, {2, 3}, Bytes(shifted).subspan(1)}, 2, 3, nullptr);
  EXPECT_EQ(matrix.owned_bytes(), 6 * sizeof(float));
  EXPECT_EQ(values_of(matrix), values);
}

TEST(StoredMatrix, HoldsItsOwnerAndCopiesShareIt) {
  auto owner = std::make_shared<const ByteVector>(from_float32(DType::kBF16, std::vector<float>{1, 2, 3, 4}));
  const std::weak_ptr<const ByteVector> alive = owner;
  StoredMatrix copy;
  {
    const StoredMatrix matrix({DType::kBF16, {2, 2}, *owner}, 2, 2, owner);
    owner.reset();
    copy = matrix;
    EXPECT_EQ(copy.view().data, matrix.view().data);
  }
  EXPECT_FALSE(alive.expired());
  EXPECT_EQ(values_of(copy), (std::vector<float>{1, 2, 3, 4}));
  copy = Matrix(1, 1);
  EXPECT_TRUE(alive.expired());
}

TEST(StoredMatrix, BlocksAreParts) {
  std::vector<int8_t> codes(35);
  std::iota(codes.begin(), codes.end(), int8_t{-17});
  std::vector<float> values(35);
  std::iota(values.begin(), values.end(), -17.0f);
  const ByteVector half = from_float32(DType::kF16, values);
  const StoredMatrix coded =
      StoredMatrix(codes, {1, 2, 3, 4, 5}, {1, 0.5f, 3, 4, 5, 6, 0.1f}).with_gains({1, 1.5f, 2, 3, 0.25f});
  for (const StoredMatrix& matrix : {coded, StoredMatrix({DType::kF16, {5, 7}, half}, 5, 7, nullptr)}) {
    const Matrix all = matrix.widened();
    Matrix part(3, 4);
    matrix.view().block_rows(1, 4).block_cols(2, 5).block_rows(1, 3).block_cols(1, 4).read(part);
    for (int64_t r = 0; r < 3; ++r)
      for (int64_t k = 0; k < 4; ++k) EXPECT_EQ(part(r, k), all(2 + r, 3 + k));
  }
}

// Each product is rounded: in another order the last bits would differ.
TEST(StoredMatrix, CodesTimesTheirFactors) {
  const std::vector<int16_t> codes = {-32768, 32767, 0, 12345, 7, -1};
  const std::vector<float> rows = {0.1f, 3.3f}, columns = {1.7f, 0x1p-20f, 5.1f}, gains = {1.01f, 0.97f};
  const StoredMatrix plain(codes, rows, columns), scaled = plain.with_gains(gains);
  EXPECT_EQ(plain.dtype(), DType::kI16);
  EXPECT_EQ(plain.owned_bytes(), 6 * sizeof(int16_t) + 5 * sizeof(float));
  EXPECT_EQ(scaled.view().data, plain.view().data);
  const Matrix before = plain.widened(), after = scaled.widened();
  for (int64_t r = 0; r < 2; ++r)
    for (int64_t k = 0; k < 3; ++k) {
      const auto row = static_cast<size_t>(r), column = static_cast<size_t>(k);
      const float value = static_cast<float>(codes[row * 3 + column]) * rows[row];
      EXPECT_EQ(before(r, k), value * columns[column]);
      EXPECT_EQ(after(r, k), (value * columns[column]) * gains[row]);
    }
}

TEST(StoredMatrix, GainsOfOthersMakeACopyUnlessAllAreOne) {
  Matrix values(2, 2);
  values(0, 1) = 3;
  values(1, 0) = 5;
  const StoredMatrix matrix(values);
  EXPECT_EQ(matrix.owned_bytes(), 16u);
  EXPECT_EQ(matrix.with_gains({1, 1}).view().data, matrix.view().data);
  EXPECT_EQ(values_of(matrix.with_gains({2, 0.5f})), (std::vector<float>{0, 6, 2.5f, 0}));
  EXPECT_EQ(values_of(matrix), (std::vector<float>{0, 3, 5, 0}));
}

}  // namespace
}  // namespace thimble::stored_matrix_test
