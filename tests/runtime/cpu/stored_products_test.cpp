// stored_products_test.cpp: products with matrices of every stored type against the same with their float32 values,
// which must be the same bits, in both passes.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "runtime/base/parallel.h"
#include "runtime/base/random.h"
#include "runtime/cpu/gemm.h"
#include "tests/runtime/tensor/guarded_matrix.h"

namespace thimble::stored_products_test {
namespace {

struct Size {
  int64_t m, n, k;
};

// Single rows and columns, sums that are empty or longer than Eigen's blocks, odd remainders of every packet, borders
// of the tiles, products that are too small for blocks, rows of more than 32000 bytes.
constexpr Size kSizes[] = {{1, 1, 1},    {1, 1, 37},      {3, 1, 17},    {1, 3, 5},     {17, 17, 17},    {5, 33, 3},
                           {31, 7, 65},  {1, 200, 64},    {1, 67, 1001}, {129, 65, 33}, {256, 8, 40},    {257, 513, 19},
                           {300, 1, 30}, {7, 515, 1},     {2, 3, 1000},  {4, 5, 0},     {0, 5, 4},       {5, 0, 4},
                           {9, 70, 257}, {130, 96, 3001}, {1, 9, 8200},  {1, 8200, 70}, {40, 530, 1200}, {6, 4, 8}};

// Of finite values, some of them subnormal.
StoredMatrix random_matrix(DType dtype, int64_t rows, int64_t cols, uint64_t seed) {
  auto uniform = [&](int64_t i) { return 2 * uniform_at(seed, 0, static_cast<uint64_t>(i)) - 1; };
  auto factors = [&](int64_t count, uint64_t stream) {
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i)
      values.push_back(static_cast<float>(0.5 + uniform_at(seed, stream, static_cast<uint64_t>(i))));
    return values;
  };
  auto codes = [&]<typename Code>(Code) {
    std::vector<Code> all;
    for (int64_t i = 0; i < rows * cols; ++i)
      all.push_back(static_cast<Code>(uniform(i) * std::numeric_limits<Code>::max()));
    return StoredMatrix(std::move(all), factors(rows, 1), factors(cols, 2)).with_gains(factors(rows, 3));
  };
  if (dtype == DType::kI8) return codes(int8_t{});
  if (dtype == DType::kI16) return codes(int16_t{});
  std::vector<float> values;
  const double least = dtype == DType::kBF16 ? 0x1p-130 : 0x1p-20;
  for (int64_t i = 0; i < rows * cols; ++i) values.push_back(static_cast<float>(uniform(i) * (i % 7 == 3 ? least : 1)));
  ByteVector bytes(1);  // so that elements lie at odd addresses
  append_bytes(bytes, from_float32(dtype, values));
  const auto owner = std::make_shared<const ByteVector>(std::move(bytes));
  return {{dtype, {rows, cols}, Bytes(*owner).subspan(1)}, rows, cols, owner};
}

class StoredProducts : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, StoredProducts, ::testing::Values(DType::kBF16, DType::kF16, DType::kI8, DType::kI16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

void expect_same_bits(const GuardedMatrix& found, const GuardedMatrix& expected) {
  EXPECT_TRUE(found.guards_intact());
  for (int64_t r = 0; r < found.rows(); ++r)
    for (int64_t c = 0; c < found.cols(); ++c)
      ASSERT_EQ(std::bit_cast<uint32_t>(found(r, c)), std::bit_cast<uint32_t>(expected(r, c))) << r << ", " << c;
}

TEST_P(StoredProducts, AreThoseOfTheValues) {
  for (const Size& s : kSizes) {
    SCOPED_TRACE(::testing::Message() << s.m << " x " << s.n << " x " << s.k);
    GuardedMatrix a(s.m, s.k), found(s.m, s.n), expected(s.m, s.n);
    a.fill_random(1);
    const StoredMatrix b = random_matrix(GetParam(), s.n, s.k, 2);
    ASSERT_EQ(b.dtype(), GetParam());
    const Matrix values = b.widened();
    multiply_nt(a, b, found);
    multiply_nt(a, values, expected);
    expect_same_bits(found, expected);
  }
}

TEST_P(StoredProducts, AreThoseOfTheValuesInTheTranspose) {
  for (const Size& s : kSizes)
    for (const bool adds : {false, true}) {
      SCOPED_TRACE(::testing::Message() << s.m << " x " << s.n << " x " << s.k << ", adds: " << adds);
      GuardedMatrix a(s.m, s.k), found(s.m, s.n), expected(s.m, s.n);
      a.fill_random(1);
      if (adds) {
        found.fill_random(3);
        expected.fill_random(3);
      }
      const StoredMatrix b = random_matrix(GetParam(), s.k, s.n, 2);
      const Matrix values = b.widened();
      multiply_nn(a, b, found, adds);
      multiply_nn(a, values, expected, adds);
      expect_same_bits(found, expected);
    }
}

TEST_P(StoredProducts, ReadPartsOfAMatrix) {
  const StoredMatrix b = random_matrix(GetParam(), 90, 77, 2);
  const Matrix values = b.widened();
  GuardedMatrix a(33, 50), found(33, 61), expected(33, 61), back(33, 50), expected_back(33, 50);
  a.fill_random(1);
  const StoredMatrixView part = b.view().block_rows(5, 61).block_cols(9, 50);
  const ConstMatrixView part_values = values.view().block_rows(5, 61).block_cols(9, 50);
  multiply_nt(a, part, found);
  multiply_nt(a, part_values, expected);
  expect_same_bits(found, expected);
  multiply_nn(expected, part, back);
  multiply_nn(expected, part_values, expected_back);
  expect_same_bits(back, expected_back);
}

TEST_P(StoredProducts, AreTheSameForAnyThreads) {
  const StoredMatrix b = random_matrix(GetParam(), 530, 70, 2);
  GuardedMatrix a(300, 70), one(300, 530), several(300, 530);
  a.fill_random(1);
  {
    ThreadLimit limit(1);
    multiply_nt(a, b, one);
  }
  ThreadLimit limit(5);
  multiply_nt(a, b, several);
  expect_same_bits(several, one);
}

// Times one: what the product reads of every 16-bit pattern.
TEST(StoredProduct, ReadsEveryPattern) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    ByteVector bytes;
    for (uint32_t bits = 0; bits < 65536; ++bits) append_little_endian(bytes, static_cast<uint16_t>(bits));
    const std::vector<float> expected = to_float32(dtype, bytes);
    auto expect_read = [&](float found, size_t i) {
      ASSERT_TRUE(found == expected[i] || (std::isnan(found) && std::isnan(expected[i]))) << i;
    };
    GuardedMatrix ones(3, 1), found(3, 65536);
    ones.fill([](int64_t, int64_t) { return 1.0; });
    multiply_nt(ones, StoredMatrix({dtype, {65536, 1}, bytes}, 65536, 1, nullptr), found);
    for (size_t i = 0; i < expected.size(); ++i) expect_read(found(2, static_cast<int64_t>(i)), i);
    multiply_nn(ones, StoredMatrix({dtype, {1, 65536}, bytes}, 1, 65536, nullptr), found);
    for (size_t i = 0; i < expected.size(); ++i) expect_read(found(1, static_cast<int64_t>(i)), i);
  }
}

}  // namespace
}  // namespace thimble::stored_products_test
