// matrix_test.cpp: owners, views and blocks of row-major matrices.
#include "runtime/tensor/matrix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace thimble::matrix_test {
namespace {

Matrix counting(int64_t rows, int64_t cols) {
  Matrix matrix(rows, cols);
  std::iota(matrix.values().begin(), matrix.values().end(), 0.0f);
  return matrix;
}

TEST(Matrix, StartsWithZeros) {
  Matrix matrix(3, 5);
  EXPECT_EQ(matrix.rows(), 3);
  EXPECT_EQ(matrix.cols(), 5);
  EXPECT_TRUE(std::ranges::all_of(matrix.values(), [](float v) { return v == 0; }));
}

TEST(Matrix, IsRowMajor) {
  Matrix matrix(std::vector<float>{0, 1, 2, 3, 4, 5}, 2, 3);
  EXPECT_EQ(matrix(1, 0), 3);
  EXPECT_EQ(matrix.row(1)[2], 5);
  EXPECT_EQ(matrix.view().row(1), matrix.data() + 3);
}

TEST(Matrix, BeginsAtAMultipleOf64Bytes) {
  for (int64_t count : {1, 2, 15, 16, 17, 1000, 100'000}) {
    const Matrix matrix(1, count), other(1, count);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(matrix.data()) % 64, 0U) << count;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(other.data()) % 64, 0U) << count;
  }
}

TEST(Matrix, MoreThanThereIsIsRefused) {
  EXPECT_THROW(AlignedAllocator<float>().allocate(SIZE_MAX / sizeof(float)), std::bad_array_new_length);
  EXPECT_THROW(AlignedAllocator<float>().allocate(SIZE_MAX), std::bad_array_new_length);
}

TEST(Matrix, BlocksKeepTheStride) {
  Matrix matrix = counting(4, 6);
  MatrixView block = matrix.view().block_rows(1, 3).block_cols(2, 3);
  EXPECT_EQ(block.rows, 3);
  EXPECT_EQ(block.cols, 3);
  EXPECT_EQ(block.stride, 6);
  EXPECT_EQ(block.row(0)[0], 8);
  EXPECT_EQ(block.row(2)[2], 22);
  block.row(1)[0] = -1;
  EXPECT_EQ(matrix(2, 2), -1);
  ConstMatrixView read_only = block;
  EXPECT_EQ(read_only.row(1)[0], -1);
}

TEST(Matrix, EmptyBlocksAreAllowedAtTheEnd) {
  Matrix matrix = counting(2, 3);
  EXPECT_EQ(matrix.view().block_rows(2, 0).rows, 0);
  EXPECT_EQ(matrix.view().block_cols(3, 0).cols, 0);
}

TEST(Matrix, ResizeClearsOnlyWhenTheElementCountChanges) {
  Matrix matrix = counting(2, 6);
  matrix.resize(4, 3);
  EXPECT_EQ(matrix(3, 2), 11);
  matrix.resize(2, 3);
  EXPECT_TRUE(std::ranges::all_of(matrix.values(), [](float v) { return v == 0; }));
}

}  // namespace
}  // namespace thimble::matrix_test
