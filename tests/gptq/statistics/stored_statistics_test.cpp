// stored_statistics_test.cpp: Hessians are the same wherever they lie.
#include "gptq/statistics/stored_statistics.h"
#include "tests/gptq/statistics/loaded_hessians.h"

#include <gtest/gtest.h>

#include <random>

namespace thimble::stored_statistics_test {
namespace {

// Values that float32 does not hold.
SymmetricMatrix random_hessian(int64_t size) {
  std::mt19937 random(static_cast<unsigned>(size));
  std::normal_distribution<double> normal;
  SymmetricMatrix matrix(size);
  for (double& value : matrix.values()) value = normal(random);
  return matrix;
}

SymmetricMatrix rounded(SymmetricMatrix matrix) {
  for (double& value : matrix.values()) value = static_cast<double>(static_cast<float>(value));
  return matrix;
}

// The floats begin where no float may be aligned.
StoredHessian in_float32(const SymmetricMatrix& matrix, StoredHessian::Layout layout) {
  ByteVector bytes(1);
  if (layout == StoredHessian::Layout::kTriangle)
    store_in_memory(matrix)->append_floats(bytes);
  else
    for (int64_t i = 0; i < matrix.size(); ++i)
      for (int64_t j = 0; j < matrix.size(); ++j) {
        const auto value = static_cast<float>(j <= i ? matrix(i, j) : 1e9);  // what is above is not read
        append_bytes(bytes, std::as_bytes(std::span(&value, 1)));
      }
  const HeldBytes held = hold(std::move(bytes));
  return {{held.bytes.subspan(1), held.owner}, layout, matrix.size(), 70, 5};
}

TEST(StoredHessian, IsRoundedToFloat32WhereItIsStoredInThat) {
  for (int64_t size : {1, 2, 65, 200}) {
    const SymmetricMatrix matrix = random_hessian(size), expected = rounded(matrix);
    for (auto layout : {StoredHessian::Layout::kTriangle, StoredHessian::Layout::kSquare}) {
      const StoredHessian stored = in_float32(matrix, layout);
      EXPECT_EQ(*stored.load(), expected) << size;
      EXPECT_EQ(stored.size(), size);
      EXPECT_EQ(stored.token_count(), 70);
      EXPECT_EQ(stored.sequence_count(), 5);
      EXPECT_EQ(stored.trace(), expected.trace());
      for (int64_t k = 0; k < size; ++k) EXPECT_EQ(stored.diagonal()[static_cast<size_t>(k)], expected(k, k));
    }
    EXPECT_EQ(*store_in_memory(matrix)->load(), matrix) << "as it is";
    EXPECT_EQ(store_in_memory(matrix)->trace(), matrix.trace());
  }
}

TEST(StoredHessian, IsScaledAsItIsLoaded) {
  const SymmetricMatrix matrix = rounded(random_hessian(9));
  const std::vector<double> added = {1, 2, 3, 4, 5, 6, 7, 8, 1e-9};
  for (const StoredHessian& stored : {*store_in_memory(matrix), in_float32(matrix, StoredHessian::Layout::kTriangle)}) {
    const StoredHessian scaled = stored.scaled(0.3, added);
    const auto loaded = scaled.load();
    for (int64_t i = 0; i < 9; ++i) {
      for (int64_t j = 0; j < i; ++j) EXPECT_EQ((*loaded)(i, j), 0.3 * matrix(i, j));
      const double expected = 0.3 * matrix(i, i) + added[static_cast<size_t>(i)];
      EXPECT_EQ((*loaded)(i, i), expected);
      EXPECT_EQ(scaled.diagonal()[static_cast<size_t>(i)], expected);
    }
    EXPECT_EQ(*stored.load(), matrix) << "not itself";
  }
}

TEST(StoredHessian, SharingSurvives) {
  const auto one = std::make_shared<const Hessian>(Hessian{random_hessian(3), 4, 2});
  const auto other = std::make_shared<const Hessian>(Hessian{random_hessian(3), 4, 2});
  const StoredHessians stored = store_in_memory({{"q", one}, {"k", one}, {"up", other}});
  EXPECT_EQ(stored.at("q"), stored.at("k"));
  EXPECT_NE(stored.at("q"), stored.at("up"));
  const HessianSet loaded = load_all(stored);
  EXPECT_EQ(loaded.at("q"), loaded.at("k"));
  EXPECT_NE(loaded.at("q"), loaded.at("up"));
  EXPECT_EQ(loaded.at("q")->matrix, one->matrix);
  EXPECT_EQ(loaded.at("q")->token_count, 4);
  EXPECT_EQ(loaded.at("q")->sequence_count, 2);
}

}  // namespace
}  // namespace thimble::stored_statistics_test
