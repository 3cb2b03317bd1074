// bf16_products_test.cpp: products of factors rounded to bf16 against loops in float64, on awkward sizes; a row's bits
// whatever rows are beside it. Where the processor multiplies float32 alone, so do these products, and few rows always.
#include <gtest/gtest.h>

#include <limits>

#include "runtime/base/parallel.h"
#include "runtime/cpu/gemm.h"
#include "runtime/tensor/rounding.h"
#include "tests/runtime/tensor/guarded_matrix.h"

namespace thimble::bf16_products_test {
namespace {

constexpr ProductArithmetic kBf16 = ProductArithmetic::kBf16;
constexpr int64_t kAny = std::numeric_limits<int64_t>::max();  // of sums over rows

struct Size {
  int64_t m, n, k;
};

// Odd remainders of pairs, vectors, panels of 48 rows and steps of 8; borders of blocks (192, 256) and tiles (512).
constexpr Size kSizes[] = {{130, 1, 1},   {131, 1, 17},   {136, 48, 2},   {137, 49, 3}, {145, 47, 31}, {64, 64, 64},
                           {129, 65, 33}, {257, 513, 19}, {300, 1, 300},  {7, 515, 1},  {2, 3, 1000},  {130, 193, 257},
                           {513, 200, 9}, {134, 530, 70}, {515, 50, 258}, {140, 5, 0},  {5, 0, 4}};

// Asked for with every factor of every sum.
bool multiplies_bf16() {
  static const bool does = cpu_instruction_set(kBf16).ends_with("bf16");
  return does;
}

// What a factor is in a product of so many rows.
double rounded(float x, int64_t rows) {
  constexpr Rounding kRounding{Format::kFp32, Format::kBf16};
  return multiplies_bf16() && rows > kMostFewRows ? kRounding(x) : x;
}

// Small integers, whose sums are exact: the smallest mistake in indices shows.
double small_integer(int64_t r, int64_t k) { return static_cast<double>((r * 7 + k * 3) % 11 - 5); }
double other_integer(int64_t r, int64_t k) { return static_cast<double>((r * 5 + k * 2) % 9 - 4); }

// c against sums over `depth` of term(r, n, i), with bounds of what rounding adds to them.
template <typename Term>
void expect_sums(const GuardedMatrix& c, int64_t depth, double unit, const Term& term) {
  EXPECT_TRUE(c.guards_intact());
  for (int64_t r = 0; r < c.rows(); ++r)
    for (int64_t n = 0; n < c.cols(); ++n) {
      double sum = 0, magnitude = 0;
      for (int64_t i = 0; i < depth; ++i) {
        const double one = term(r, n, i);
        sum += one;
        magnitude += std::abs(one);
      }
      ASSERT_LE(std::abs(double{c(r, n)} - sum), 1.01 * static_cast<double>(depth + 2) * unit * magnitude)
          << "row " << r << " column " << n << ": " << c(r, n) << ", " << sum;
    }
}

// All three forms, of matrices that fill_factor(matrix, which) fills.
template <typename Fill>
void check_products(double unit, const Fill& fill_factor) {
  for (const Size& s : kSizes) {
    SCOPED_TRACE(::testing::Message() << s.m << " x " << s.n << " x " << s.k);
    GuardedMatrix a(s.m, s.k), b(s.n, s.k), columns(s.k, s.n), x(s.k, s.m), c(s.m, s.n);
    fill_factor(a, 0);
    fill_factor(b, 1);
    fill_factor(columns, 2);
    fill_factor(x, 3);
    multiply_nt(a, b, c, kBf16);
    expect_sums(c, s.k, unit,
                [&](int64_t r, int64_t n, int64_t i) { return rounded(a(r, i), s.m) * rounded(b(n, i), s.m); });
    multiply_nn(a, columns, c, /*adds=*/false, kBf16);
    auto back = [&](int64_t r, int64_t n, int64_t i) { return rounded(a(r, i), s.m) * rounded(columns(i, n), s.m); };
    expect_sums(c, s.k, unit, back);
    multiply_nn(a, columns, c, /*adds=*/true, kBf16);
    expect_sums(c, s.k, unit, [&](int64_t r, int64_t n, int64_t i) { return 2 * back(r, n, i); });
    c.fill([](int64_t, int64_t) { return 0.0; });
    accumulate_cross(x, columns, c, kBf16);
    auto cross = [&](int64_t r, int64_t n, int64_t i) { return rounded(x(i, r), kAny) * rounded(columns(i, n), kAny); };
    expect_sums(c, s.k, unit, cross);
    accumulate_cross(x, columns, c, kBf16);
    expect_sums(c, s.k, unit, [&](int64_t r, int64_t n, int64_t i) { return 2 * cross(r, n, i); });
  }
}

TEST(Bf16Products, AreExactOnIntegers) {
  check_products(0, [](GuardedMatrix& m, int which) { m.fill(which % 2 == 0 ? small_integer : other_integer); });
}

TEST(Bf16Products, AreThoseOfRoundedFactors) {
  check_products(kFloatRounding, [](GuardedMatrix& m, int which) { m.fill_random(static_cast<uint64_t>(which + 1)); });
}

TEST(Bf16Products, GramIsTheLowerTriangle) {
  for (int64_t columns : {1, 47, 193, 1030}) {
    GuardedMatrix x(37, columns), c(columns, columns);
    x.fill(small_integer);
    c.fill([](int64_t, int64_t) { return 0.0; });
    accumulate_gram_lower(x, c, kBf16);
    for (int64_t i = 0; i < columns; ++i)
      for (int64_t j = 0; j <= i; ++j) {
        double sum = 0;
        for (int64_t t = 0; t < x.rows(); ++t) sum += double{x(t, i)} * x(t, j);
        ASSERT_EQ(c(i, j), sum) << i << ", " << j << " of " << columns;
      }
  }
}

TEST(Bf16Products, AreTheSameForStoredTypes) {
  GuardedMatrix a(170, 300), values(200, 300), expected(170, 200), found(170, 200);
  a.fill_random(1);
  std::vector<float> all;
  for (int64_t r = 0; r < 200; ++r)
    for (int64_t k = 0; k < 300; ++k) all.push_back(static_cast<float>(other_integer(r, k)));
  values.fill(other_integer);
  multiply_nt(a, values, expected, kBf16);
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    const auto bytes = std::make_shared<const ByteVector>(from_float32(dtype, all));
    multiply_nt(a, StoredMatrix({dtype, {200, 300}, *bytes}, 200, 300, bytes), found, kBf16);
    for (int64_t r = 0; r < 170; ++r)
      for (int64_t n = 0; n < 200; ++n) ASSERT_EQ(found(r, n), expected(r, n)) << dtype_name(dtype);
  }
}

TEST(Bf16Products, HaveTheSameBitsForAnyRows) {
  GuardedMatrix a(530, 300), b(400, 300), all(530, 400), some(530, 400);
  a.fill_random(1);
  b.fill_random(2);
  multiply_nt(a, b, all, kBf16);
  if (!multiplies_bf16()) GTEST_SKIP() << "Eigen adds up a row by where it lies";
  for (auto [first, count] : {std::pair<int64_t, int64_t>{0, 136}, {3, 150}, {100, 129}, {399, 131}}) {
    const MatrixView rows = MatrixView(some).block_rows(first, count);
    multiply_nt(ConstMatrixView(a).block_rows(first, count), b, rows, kBf16);
    for (int64_t r = first; r < first + count; ++r)
      for (int64_t n = 0; n < 400; ++n) ASSERT_EQ(some(r, n), all(r, n)) << r << ", " << n;
  }
}

TEST(Bf16Products, HaveTheSameBitsForAnyThreads) {
  GuardedMatrix a(530, 70), b(400, 70), x(90, 530);
  a.fill_random(1);
  b.fill_random(2);
  x.fill_random(3);
  std::vector<GuardedMatrix> products, gram;
  for (int threads : {1, 2, 5}) {
    ThreadLimit limit(threads);
    multiply_nt(a, b, products.emplace_back(530, 400), kBf16);
    gram.emplace_back(530, 530).fill([](int64_t, int64_t) { return 0.0; });
    accumulate_gram_lower(x, gram.back(), kBf16);
  }
  for (size_t i : {size_t{1}, size_t{2}}) {
    EXPECT_EQ(products[i], products[0]);
    EXPECT_EQ(gram[i], gram[0]);
  }
}

}  // namespace
}  // namespace thimble::bf16_products_test
