// gemm_test.cpp: matrix products against loops in higher precision, on awkward sizes and strided views; the same bits
// for any number of threads; the choice of instruction set.
#include "runtime/cpu/gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "runtime/base/error.h"
#include "runtime/base/parallel.h"
#include "tests/runtime/tensor/guarded_matrix.h"

namespace thimble::gemm_test {
namespace {

struct Size {
  int64_t m, n, k;
};

// Single rows and columns, odd remainders of every vector width, borders of the tiles (128, 256 and 512), empty sums.
constexpr Size kSizes[] = {{1, 1, 1},    {1, 1, 17},    {3, 1, 17},    {1, 3, 5},       {17, 17, 17}, {5, 33, 3},
                           {31, 7, 65},  {64, 64, 64},  {1, 200, 64},  {129, 65, 33},   {256, 8, 40}, {257, 513, 19},
                           {128, 64, 9}, {300, 1, 300}, {7, 515, 1},   {1030, 200, 20}, {2, 3, 1000}, {4, 5, 0},
                           {0, 5, 4},    {5, 0, 4},     {130, 70, 257}};

// Rounding of a dot product of k terms (Higham, eq. 3.5, with a factor for the higher-order terms).
template <typename Product>
double dot_tolerance(int64_t k, double unit, Product term) {
  double magnitude = 0;
  for (int64_t i = 0; i < k; ++i) magnitude += std::abs(term(i));
  return 1.01 * static_cast<double>(k + 1) * unit * magnitude;
}

template <typename Product>
double sum_of(int64_t k, Product term) {
  double sum = 0;
  for (int64_t i = 0; i < k; ++i) sum += term(i);
  return sum;
}

TEST(Gemm, MultiplyNtMatchesLoops) {
  for (const Size& s : kSizes) {
    SCOPED_TRACE(::testing::Message() << s.m << " x " << s.n << " x " << s.k);
    GuardedMatrix a(s.m, s.k), b(s.n, s.k), c(s.m, s.n);
    a.fill_random(1);
    b.fill_random(2);
    multiply_nt(a, b, c);
    auto term = [&](int64_t r, int64_t n) { return [&, r, n](int64_t i) { return double{a(r, i)} * b(n, i); }; };
    expect_close(
        c, [&](int64_t r, int64_t n) { return sum_of(s.k, term(r, n)); },
        [&](int64_t r, int64_t n) { return dot_tolerance(s.k, kFloatRounding, term(r, n)); });
  }
}

// Sums of small integers are exact: the smallest mistake in indices shows.
TEST(Gemm, MultiplyNtIsExactOnIntegers) {
  GuardedMatrix a(70, 90), b(140, 90), c(70, 140);
  a.fill([](int64_t r, int64_t k) { return static_cast<double>((r * 7 + k * 3) % 11 - 5); });
  b.fill([](int64_t n, int64_t k) { return static_cast<double>((n * 5 + k * 2) % 13 - 6); });
  multiply_nt(a, b, c);
  expect_close(
      c, [&](int64_t r, int64_t n) { return sum_of(90, [&](int64_t k) { return double{a(r, k)} * b(n, k); }); },
      [](int64_t, int64_t) { return 0.0; });
}

TEST(Gemm, MultiplyNtOfOneOutlier) {
  GuardedMatrix a(33, 50), b(20, 50), c(33, 20);
  a.fill([](int64_t r, int64_t k) { return r == 9 && k == 31 ? 1e30 : 0.0; });
  b.fill_random(3);
  multiply_nt(a, b, c);
  expect_close(
      c, [&](int64_t r, int64_t n) { return r == 9 ? double{1e30f * b(n, 31)} : 0.0; },
      [](int64_t, int64_t) { return 0.0; });
}

TEST(Gemm, GramMatchesLoopsAndAdds) {
  for (const Size& s :
       {Size{1, 1, 1}, {3, 17, 0}, {1, 33, 0}, {65, 7, 0}, {40, 255, 0}, {9, 257, 0}, {50, 600, 0}, {300, 1100, 0}}) {
    SCOPED_TRACE(::testing::Message() << s.m << " tokens, " << s.n << " columns");
    GuardedMatrix x(s.m, s.n), c(s.n, s.n);
    x.fill_random(4);
    c.fill_random(5);
    GuardedMatrix before = c;
    accumulate_gram_lower(x, c);
    EXPECT_TRUE(c.guards_intact());
    std::vector<double> columns;  // one after another: hundreds of millions of products follow
    for (int64_t i = 0; i < s.n; ++i)
      for (int64_t t = 0; t < s.m; ++t) columns.push_back(x(t, i));
    for (int64_t i = 0; i < s.n; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        const double *a = &columns[static_cast<size_t>(i * s.m)], *b = &columns[static_cast<size_t>(j * s.m)];
        double expected = before(i, j), magnitude = 0;
        for (int64_t t = 0; t < s.m; ++t) {
          expected += a[t] * b[t];
          magnitude += std::abs(a[t] * b[t]);
        }
        double tolerance = kFloatRounding * (1.01 * static_cast<double>(s.m + 1) * magnitude + 2 * std::abs(expected));
        ASSERT_NEAR(c(i, j), expected, tolerance) << i << ", " << j;
      }
    }
  }
}

TEST(Gemm, CrossMatchesLoopsAndAdds) {
  for (const Size& s : {Size{1, 1, 1}, {3, 17, 5}, {65, 7, 9}, {40, 255, 300}, {50, 600, 33}}) {
    SCOPED_TRACE(::testing::Message() << s.m << " tokens, " << s.n << " and " << s.k << " columns");
    GuardedMatrix x(s.m, s.n), y(s.m, s.k), c(s.n, s.k);
    x.fill_random(4);
    y.fill_random(6);
    c.fill_random(5);
    GuardedMatrix before = c;
    accumulate_cross(x, y, c);
    EXPECT_TRUE(c.guards_intact());
    for (int64_t i = 0; i < s.n; ++i) {
      for (int64_t j = 0; j < s.k; ++j) {
        auto term = [&](int64_t t) { return double{x(t, i)} * y(t, j); };
        double expected = before(i, j) + sum_of(s.m, term);
        double tolerance = dot_tolerance(s.m, kFloatRounding, term) + 2 * kFloatRounding * std::abs(expected);
        ASSERT_NEAR(c(i, j), expected, tolerance) << i << ", " << j;
      }
    }
  }
}

TEST(Gemm, SubtractProductMatchesLoops) {
  for (const Size& s : kSizes) {
    SCOPED_TRACE(::testing::Message() << s.m << " x " << s.n << " x " << s.k);
    GuardedMatrixF64 a(s.m, s.k), b(s.k, s.n), c(s.m, s.n);
    a.fill_random(6);
    b.fill_random(7);
    c.fill_random(8);
    GuardedMatrixF64 before = c;
    subtract_product(a, b, c);
    auto term = [&](int64_t r, int64_t n) { return [&, r, n](int64_t i) { return a(r, i) * b(i, n); }; };
    // The loop rounds as the product does: both errors count.
    expect_close(
        c, [&](int64_t r, int64_t n) { return before(r, n) - sum_of(s.k, term(r, n)); },
        [&](int64_t r, int64_t n) {
          return 2 * dot_tolerance(s.k, kDoubleRounding, term(r, n)) + 4 * kDoubleRounding * std::abs(before(r, n));
        });
  }
}

// A factor too large to be packed at once, against the same in pieces that are not: bit for bit, on every path.
TEST(Gemm, PartsOfALargeFactorChangeNoBit) {
  constexpr int64_t kDepth = 9000, kColumns = 700, kRows = 140, kPiece = 192;
  GuardedMatrix a(kRows, kDepth), b(kColumns, kDepth), found(kRows, kColumns), expected(kRows, kColumns);
  a.fill_random(1);
  b.fill_random(2);
  multiply_nt(a, b, found);
  GuardedMatrix x(kDepth, kRows), y(kDepth, kColumns), cross(kRows, kColumns), expected_cross(kRows, kColumns);
  x.fill_random(3);
  y.fill_random(4);
  cross.fill_random(5);
  expected_cross = cross;
  accumulate_cross(x, y, cross);
  GuardedMatrix back(kRows, kColumns), expected_back(kRows, kColumns);
  back.fill_random(6);
  expected_back = back;
  const StoredMatrixView columns(ConstMatrixView{y});
  multiply_nn(a, columns, back, true);
  for (int64_t first = 0; first < kColumns; first += kPiece) {
    const int64_t count = std::min(kPiece, kColumns - first);
    const auto of = [&](GuardedMatrix& m) { return MatrixView(m).block_cols(first, count); };
    multiply_nt(a, ConstMatrixView(b).block_rows(first, count), of(expected));
    accumulate_cross(x, of(y), of(expected_cross));
    multiply_nn(a, columns.block_cols(first, count), of(expected_back), true);
  }
  EXPECT_EQ(found, expected);
  EXPECT_EQ(cross, expected_cross);
  EXPECT_EQ(back, expected_back);
}

TEST(Gemm, ThreadsDoNotChangeBits) {
  GuardedMatrix a(300, 70), b(530, 70), few(5, 70), x(90, 530);
  a.fill_random(1);
  b.fill_random(2);
  few.fill_random(3);
  x.fill_random(4);
  std::vector<GuardedMatrix> wide, narrow, gram, cross;
  for (int threads : {1, 2, 5}) {
    ThreadLimit limit(threads);
    wide.emplace_back(300, 530);
    narrow.emplace_back(5, 530);
    gram.emplace_back(530, 530).fill([](int64_t, int64_t) { return 0.0; });
    multiply_nt(a, b, wide.back());
    multiply_nt(few, b, narrow.back());
    accumulate_gram_lower(x, gram.back());
    cross.emplace_back(530, 530).fill([](int64_t, int64_t) { return 0.0; });
    accumulate_cross(x, x, cross.back());
  }
  for (size_t i : {size_t{1}, size_t{2}}) {
    EXPECT_EQ(wide[i], wide[0]);
    EXPECT_EQ(narrow[i], narrow[0]);
    EXPECT_EQ(gram[i], gram[0]);
    EXPECT_EQ(cross[i], cross[0]);
  }
}

// Generation in any batch draws the same tokens because of this.
TEST(Gemm, RowsOfASmallProductDoNotDependOnTheOthers) {
  for (auto [n, k] : {std::pair<int64_t, int64_t>{530, 70}, {65, 700}, {129, 33}, {7, 16}, {300, 1500}}) {
    GuardedMatrix a(kMostFewRows, k), b(n, k), all(kMostFewRows, n);
    a.fill_random(1);
    b.fill_random(2);
    multiply_nt(a, b, all);
    for (int64_t rows = 2; rows <= kMostFewRows; rows += rows < 34 ? 1 : 13) {
      for (int64_t first : {int64_t{0}, (kMostFewRows - rows) / 2, kMostFewRows - rows}) {
        GuardedMatrix some(rows, n);
        multiply_nt(ConstMatrixView(a).block_rows(first, rows), b, some);
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t c = 0; c < n; ++c)
            ASSERT_EQ(some(r, c), all(first + r, c)) << rows << " rows from " << first << " x " << n << " x " << k;
      }
    }
  }
}

TEST(InstructionSet, IsWhatTheEnvironmentAllows) {
  const char* limit = std::getenv("THIMBLE_ISA");
  std::vector<std::string_view> known = {"portable", "avx2", "avx512", "avx512_bf16", "amx_bf16"};
  auto rank = [&](std::string_view name) { return std::ranges::find(known, name) - known.begin(); };
  ASSERT_LT(rank(cpu_instruction_set()), 3);
  if (limit) {
    EXPECT_LE(rank(cpu_instruction_set()), rank(limit));
    EXPECT_LE(rank(cpu_instruction_set(ProductArithmetic::kBf16)), rank(limit));
  }
#ifdef THIMBLE_X86_KERNELS
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (avx2 && (!limit || limit != std::string_view("portable"))) {
    EXPECT_NE(cpu_instruction_set(), "portable");
  }
#endif
}

// A fresh process (the choice is made once), with a name that no table has.
TEST(InstructionSetDeathTest, AnUnknownNameIsAUsageError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto ask = [] {
    ::setenv("THIMBLE_ISA", "mmx", 1);
    try {
      cpu_instruction_set();
    } catch (const UsageError& error) {
      std::fputs(error.what(), stderr);
      std::exit(static_cast<int>(error.code()));
    }
    std::exit(0);
  };
  EXPECT_EXIT(ask(), ::testing::ExitedWithCode(2), "THIMBLE_ISA is 'mmx', allowed are portable, avx2, avx512");
}

}  // namespace
}  // namespace thimble::gemm_test
