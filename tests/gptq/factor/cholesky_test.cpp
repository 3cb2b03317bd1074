// cholesky_test.cpp: U^T U A = I, checked by plain products, at sizes on both sides of the block size.
#include "gptq/factor/hessian_factor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "runtime/base/parallel.h"
#include "tests/gptq/statistics/gptq_samples.h"
#include "tests/support/small_stack.h"

namespace thimble::cholesky_test {
namespace {

MatrixF64 square(const SymmetricMatrix& symmetric) {
  MatrixF64 full(symmetric.size(), symmetric.size());
  for (int64_t i = 0; i < full.rows(); ++i)
    for (int64_t j = 0; j < full.cols(); ++j) full(i, j) = symmetric(i, j);
  return full;
}

class CholeskySizes : public ::testing::TestWithParam<int64_t> {};

TEST_P(CholeskySizes, FactorTimesItsTransposeInvertsTheMatrix) {
  int64_t n = GetParam();
  MatrixF64 a = square(correlated_hessian(n, 7));
  for (int64_t i = 0; i < n; ++i) a(i, i) += 0.1;
  auto u = inverse_upper_cholesky(a);
  ASSERT_TRUE(u.has_value());
  MatrixF64 ua(n, n);  // U A
  for (int64_t i = 0; i < n; ++i)
    for (int64_t m = i; m < n; ++m)
      for (int64_t j = 0; j < n; ++j) ua(i, j) += (*u)(i, m) * a(m, j);
  MatrixF64 product(n, n);  // U^T U A
  for (int64_t m = 0; m < n; ++m)
    for (int64_t i = m; i < n; ++i)
      for (int64_t j = 0; j < n; ++j) product(i, j) += (*u)(m, i) * ua(m, j);
  for (int64_t i = 0; i < n; ++i) {
    EXPECT_GT((*u)(i, i), 0);
    for (int64_t j = 0; j < i; ++j) ASSERT_EQ((*u)(i, j), 0) << i << ' ' << j;
    for (int64_t j = 0; j < n; ++j) ASSERT_NEAR(product(i, j), i == j, 1e-9) << i << ' ' << j;
  }
}

INSTANTIATE_TEST_SUITE_P(BlockBoundaries, CholeskySizes, ::testing::Values(1, 2, 3, 127, 128, 129, 300));

TEST(Cholesky, ReadsTheUpperTriangleOnly) {
  MatrixF64 a = square(correlated_hessian(150, 3));
  MatrixF64 upper_only = a;
  for (int64_t i = 0; i < 150; ++i)
    for (int64_t j = 0; j < i; ++j) upper_only(i, j) = std::numeric_limits<double>::quiet_NaN();
  auto expected = inverse_upper_cholesky(a), found = inverse_upper_cholesky(upper_only);
  ASSERT_TRUE(expected && found);
  EXPECT_TRUE(std::ranges::equal(expected->values(), found->values()));
}

TEST(Cholesky, RefusesWhatIsNotPositiveDefinite) {
  MatrixF64 zero(5, 5);
  EXPECT_FALSE(inverse_upper_cholesky(zero));

  MatrixF64 ones(200, 200);  // rank 1
  for (double& value : ones.values()) value = 1;
  EXPECT_FALSE(inverse_upper_cholesky(ones));

  MatrixF64 indefinite(200, 200);
  for (int64_t i = 0; i < 200; ++i) indefinite(i, i) = i == 3 ? -1 : 1;
  EXPECT_FALSE(inverse_upper_cholesky(indefinite));
}

TEST(Cholesky, RefusesAPivotThatIsRoundingNoise) {
  MatrixF64 a(2, 2);
  for (double& value : a.values()) value = 1;
  a(0, 0) += std::numeric_limits<double>::epsilon();  // the last pivot is this epsilon
  EXPECT_FALSE(inverse_upper_cholesky(a));
  a(0, 0) = 1 + 1e-12;
  EXPECT_TRUE(inverse_upper_cholesky(a));
}

TEST(Cholesky, ScaleOfAColumnDoesNotMatter) {
  MatrixF64 a(3, 3);
  a(0, 0) = 1e30;
  a(1, 1) = 1;
  a(2, 2) = 1e-30;
  auto u = inverse_upper_cholesky(a);
  ASSERT_TRUE(u.has_value());
  EXPECT_NEAR((*u)(0, 0), 1e-15, 1e-27);
  EXPECT_NEAR((*u)(2, 2), 1e15, 1e3);
}

TEST(Cholesky, SameForAnyThreadCount) {
  MatrixF64 a = square(correlated_hessian(333, 5));
  std::optional<MatrixF64> one, many;
  {
    ThreadLimit limit(1);
    one = inverse_upper_cholesky(a);
  }
  {
    ThreadLimit limit(4);
    many = inverse_upper_cholesky(a);
  }
  ASSERT_TRUE(one && many);
  EXPECT_TRUE(std::ranges::equal(one->values(), many->values()));
}

TEST(Cholesky, NeedsLittleStack) {
  MatrixF64 a(300, 300);
  for (int64_t i = 0; i < a.rows(); ++i) a(i, i) = 2;
  std::optional<MatrixF64> u;
  run_on_small_stack([&] { u = inverse_upper_cholesky(a); });
  ASSERT_TRUE(u.has_value());
  EXPECT_NEAR((*u)(299, 299), std::sqrt(0.5), 1e-12);
}

}  // namespace
}  // namespace thimble::cholesky_test
