// cuda_float_product_test.cpp: products on the device in each arithmetic against plain sums in float64, on awkward
// sizes, aligned to vectors and not, in batches, and cut by causality.
#include "runtime/cuda/kernels/products/cuda_float_product.cuh"

#include <gtest/gtest.h>

#include "runtime/cuda/cuda_gradient_products.cuh"
#include "tests/runtime/cuda/kernels/cuda_device.h"
#include "tests/runtime/cuda/kernels/device_copy.h"

namespace thimble::cuda_float_product_test {
namespace {

struct Sizes {
  int64_t m, n, k;
};
constexpr Sizes kSizes[] = {{1, 1, 1},     {1, 64, 16},   {3, 5, 7},      {128, 64, 16},  {129, 65, 17},
                            {127, 128, 3}, {260, 12, 20}, {64, 129, 512}, {200, 256, 100}};

double element(const Matrix& matrix, bool transposed, int64_t r, int64_t c) {
  return transposed ? matrix(c, r) : matrix(r, c);
}

// op(A) op(B), and the sum of magnitudes, which the rounding goes with.
double reference(ProductForm form, const Matrix& a, const Matrix& b, int64_t r, int64_t c, int64_t begin, int64_t end,
                 double* magnitude) {
  double sum = 0;
  *magnitude = 0;
  for (int64_t k = begin; k < end; ++k) {
    double term = element(a, form == ProductForm::kTN, r, k) * element(b, form == ProductForm::kNT, k, c);
    sum += term;
    *magnitude += std::abs(term);
  }
  return sum;
}

class CudaFloatProduct : public CudaTest, public ::testing::WithParamInterface<ProductArithmetic> {
 protected:
  // How far a sum of k terms may be off that add up to so much without their signs: sums in float32; factors too, or
  // each rounded to 8 significant bits.
  static double allowed(int64_t k, double magnitude) {
    const double of_factors = GetParam() == ProductArithmetic::kBf16 ? 2.02 * 0x1p-8 : 0;
    return ((static_cast<double>(k) + 2) * 0x1p-24 + of_factors) * magnitude + 0x1p-23;
  }
  // multiply(form, a, b, c, add) of all forms and sizes; factors are stored as T, products as C.
  template <typename T, typename C, typename Multiply>
  static void expect_sums(const Multiply& multiply) {
    for (ProductForm form : {ProductForm::kNT, ProductForm::kNN, ProductForm::kTN})
      for (Sizes s : kSizes)
        for (int64_t guard : {8, 7})
          for (bool add : {false, true}) {
            SCOPED_TRACE(::testing::Message() << "form " << static_cast<int>(form) << ", " << s.m << " x " << s.n
                                              << " x " << s.k << ", guard " << guard << (add ? ", added" : ""));
            Matrix a = left(form, s), b = right(form, s), before = random_values(s.m, s.n, 3);
            BasicDeviceCopy<T> da(a, guard), db(b, guard);
            BasicDeviceCopy<C> dc =
                add ? BasicDeviceCopy<C>(before, guard) : BasicDeviceCopy<C>::poisoned(s.m, s.n, guard);
            multiply(form, BasicProductInput<T>(da), BasicProductInput<T>(db), BasicProductOutput<C>(dc), add);
            Matrix c = dc.download();
            for (int64_t r = 0; r < s.m; ++r)
              for (int64_t n = 0; n < s.n; ++n) {
                double magnitude = 0, expected = reference(form, a, b, r, n, 0, s.k, &magnitude);
                if (add) expected += before(r, n);
                ASSERT_NEAR(c(r, n), expected, allowed(s.k, magnitude + std::abs(expected) + std::abs(before(r, n))))
                    << r << ' ' << n;
              }
          }
  }
  static Matrix left(ProductForm form, Sizes s) {
    return form == ProductForm::kTN ? random_values(s.k, s.m, 1) : random_values(s.m, s.k, 1);
  }
  static Matrix right(ProductForm form, Sizes s) {
    return form == ProductForm::kNT ? random_values(s.n, s.k, 2) : random_values(s.k, s.n, 2);
  }
};

TEST_P(CudaFloatProduct, IsTheSumOfProducts) {
  auto multiply = [](ProductForm form, const auto& a, const auto& b, const auto& c, bool add) {
    launch_product(form, a, b, c, {.arithmetic = GetParam(), .add = add}, nullptr);
  };
  expect_sums<float, float>(multiply);
  if (GetParam() != ProductArithmetic::kBf16) return;
  expect_sums<__nv_bfloat16, float>(multiply);
  expect_sums<__nv_bfloat16, __nv_bfloat16>(multiply);
}

TEST_P(CudaFloatProduct, OfGradientsIsTheSumOfProducts) {
  auto multiply = [](ProductForm form, const auto& a, const auto& b, const auto& c, bool add) {
    launch_gradient_product(form, a, b, c, add, /*batch=*/1, nullptr);
  };
  if (GetParam() != ProductArithmetic::kBf16) return expect_sums<float, float>(multiply);
  expect_sums<__nv_bfloat16, float>(multiply);
  expect_sums<__nv_bfloat16, __nv_bfloat16>(multiply);
}

// Windows of 67 rows, which no tile ends with.
template <typename T, typename Allowed>
void expect_windows_apart(const Allowed& allowed) {
  constexpr int64_t kWindows = 3, kRows = 67, kM = 136;
  for (int64_t n : {36, 40}) {
    Matrix a = random_values(kWindows * kRows, kM, 1), b = random_values(kWindows * kRows, n, 2);
    BasicDeviceCopy<T> da(a, 8), db(b, 8);
    DeviceCopy dc = DeviceCopy::poisoned(kWindows * kM, n, 8);
    launch_gradient_product(ProductForm::kTN, BasicProductInput<T>(da.data(), kRows, kM, kM, {.outer = kRows * kM}),
                            BasicProductInput<T>(db.data(), kRows, n, n, {.outer = kRows * n}),
                            ProductOutput(dc.data(), kM, n, n, {.outer = kM * n}), /*add=*/false, kWindows, nullptr);
    Matrix c = dc.download();
    for (int64_t w = 0; w < kWindows; ++w)
      for (int64_t m = 0; m < kM; ++m)
        for (int64_t i = 0; i < n; ++i) {
          double magnitude = 0;
          const double expected = reference(ProductForm::kTN, a, b, m, i, w * kRows, (w + 1) * kRows, &magnitude);
          ASSERT_NEAR(c(w * kM + m, i), expected, allowed(kRows, magnitude)) << w << ' ' << m << ' ' << i;
        }
  }
}

TEST_P(CudaFloatProduct, OfGradientsKeepsWindowsApart) {
  if (GetParam() == ProductArithmetic::kBf16)
    expect_windows_apart<__nv_bfloat16>(allowed);
  else
    expect_windows_apart<float>(allowed);
}

// Rows of a product, and a window's sums, are the same bits alone.
template <typename T>
void expect_the_same_in_any_batch(int64_t depth) {
  using Input = BasicProductInput<T>;
  using Copy = BasicDeviceCopy<T>;
  Matrix a = random_values(300, depth, 1), b = random_values(80, depth, 2), d = random_values(300, 80, 3);
  Copy da(a, 8), db(b, 8), dd(d, 8), whole = Copy::poisoned(300, 80, 8);
  DeviceCopy sums = DeviceCopy::poisoned(240, depth, 8);
  launch_gradient_product(ProductForm::kNT, Input(da), Input(db), BasicProductOutput<T>(whole), /*add=*/false,
                          /*batch=*/1, nullptr);
  launch_gradient_product(ProductForm::kTN, Input(dd.data(), 100, 80, 80, {.outer = 100 * 80}),
                          Input(da.data(), 100, depth, depth, {.outer = 100 * depth}),
                          ProductOutput(sums.data(), 80, depth, depth, {.outer = 80 * depth}), /*add=*/false,
                          /*batch=*/3, nullptr);
  Copy row = Copy::poisoned(1, 80, 8);
  DeviceCopy sum = DeviceCopy::poisoned(80, depth, 8);
  launch_gradient_product(ProductForm::kNT, Input(da.data() + 171 * depth, 1, depth, depth), Input(db),
                          BasicProductOutput<T>(row), /*add=*/false, /*batch=*/1, nullptr);
  launch_gradient_product(ProductForm::kTN, Input(dd.data() + 100 * 80, 100, 80, 80),
                          Input(da.data() + 100 * depth, 100, depth, depth), ProductOutput(sum), /*add=*/false,
                          /*batch=*/1, nullptr);
  const Matrix all_rows = whole.download(), one_row = row.download(), one_sum = sum.download();
  const Matrix all_sums = sums.download();
  for (int64_t c = 0; c < 80; ++c) EXPECT_EQ(one_row(0, c), all_rows(171, c)) << c;
  for (int64_t r = 0; r < 80; ++r)
    for (int64_t c = 0; c < depth; ++c) ASSERT_EQ(one_sum(r, c), all_sums(80 + r, c)) << r << ' ' << c;
}

TEST_P(CudaFloatProduct, OfGradientsDoesNotDependOnTheBatch) {
  for (int64_t depth : {100, 104}) {
    SCOPED_TRACE(depth);
    if (GetParam() == ProductArithmetic::kBf16)
      expect_the_same_in_any_batch<__nv_bfloat16>(depth);
    else
      expect_the_same_in_any_batch<float>(depth);
  }
}

// Four products at once: two outer, two inner of which both share B.
TEST_P(CudaFloatProduct, BatchesStepThroughTheirOperands) {
  constexpr int64_t kM = 30, kN = 20, kK = 12;
  Matrix a = random_values(2 * kM, 2 * kK, 1), b = random_values(2 * kN, kK, 2);
  DeviceCopy da(a, 8), db(b, 8), dc = DeviceCopy::poisoned(4 * kM, kN, 8);
  launch_product(ProductForm::kNT, {da.data(), kM, kK, 2 * kK, {kM * 2 * kK, kK}},
                 {db.data(), kN, kK, kK, {kN * kK, kN * kK, 2}}, {dc.data(), kM, kN, kN, {2 * kM * kN, kM * kN}},
                 {.arithmetic = GetParam(), .batch = {2, 2}}, nullptr);
  Matrix c = dc.download();
  for (int64_t outer = 0; outer < 2; ++outer)
    for (int64_t inner = 0; inner < 2; ++inner)
      for (int64_t r = 0; r < kM; ++r)
        for (int64_t n = 0; n < kN; ++n) {
          double expected = 0, magnitude = 0;
          for (int64_t k = 0; k < kK; ++k) {
            const double term = double{a(outer * kM + r, inner * kK + k)} * b(outer * kN + n, k);
            expected += term;
            magnitude += std::abs(term);
          }
          ASSERT_NEAR(c((2 * outer + inner) * kM + r, n), expected, allowed(kK, magnitude));
        }
}

// The same bits alone and between others, aligned or not.
TEST_P(CudaFloatProduct, RowsDoNotDependOnTheirNeighbours) {
  Matrix a = random_values(300, 100, 1), b = random_values(80, 100, 2);
  DeviceCopy da(a, 8), db(b, 8), whole = DeviceCopy::poisoned(300, 80, 8);
  launch_product(ProductForm::kNT, ProductInput(da), ProductInput(db), ProductOutput(whole), {.arithmetic = GetParam()},
                 nullptr);
  Matrix row(std::span<const float>(a.row(171), 100), 1, 100);
  DeviceCopy drow(row, 7), alone = DeviceCopy::poisoned(1, 80, 7);
  launch_product(ProductForm::kNT, ProductInput(drow), ProductInput(db), ProductOutput(alone),
                 {.arithmetic = GetParam()}, nullptr);
  Matrix expected = whole.download(), found = alone.download();
  for (int64_t c = 0; c < 80; ++c) EXPECT_EQ(found(0, c), expected(171, c)) << c;
}

TEST_P(CudaFloatProduct, TilesAboveTheDiagonalAreLeftAlone) {
  constexpr int64_t kSide = 300;
  Matrix a = random_values(kSide, 20, 1), b = random_values(kSide, 20, 2);
  DeviceCopy da(a, 8), db(b, 8), dc = DeviceCopy::poisoned(kSide, kSide, 8);
  launch_product(ProductForm::kNT, ProductInput(da), ProductInput(db), ProductOutput(dc),
                 {.arithmetic = GetParam(), .part = ProductPart::kLowerTiles}, nullptr);
  Matrix c = dc.download();
  for (int64_t r = 0; r < kSide; ++r)
    for (int64_t n = 0; n < kSide; ++n) {
      if (n >= (r / kCausalTile + 1) * kCausalTile) {
        ASSERT_TRUE(std::isnan(c(r, n))) << r << ' ' << n;
        continue;
      }
      double magnitude = 0;
      const double expected = reference(ProductForm::kNT, a, b, r, n, 0, 20, &magnitude);
      ASSERT_NEAR(c(r, n), expected, allowed(20, magnitude)) << r << ' ' << n;
    }
}

// Beyond the tiles that causality leaves, A may hold anything: NaN here.
TEST_P(CudaFloatProduct, DepthIsCutAtTiles) {
  constexpr int64_t kSide = 300, kN = 33;
  Matrix lower(kSide, kSide), b = random_values(kSide, kN, 2);
  for (int64_t r = 0; r < kSide; ++r)
    for (int64_t k = 0; k < kSide; ++k) {
      bool is_read = k < (r / kCausalTile + 1) * kCausalTile;
      lower(r, k) = !is_read ? NAN : k <= r ? random_values(1, 1, static_cast<uint64_t>(r * kSide + k))(0, 0) : 0;
    }
  DeviceCopy da(lower, 8), db(b, 8), forward = DeviceCopy::poisoned(kSide, kN, 8),
                                     backward = DeviceCopy::poisoned(kSide, kN, 8);
  launch_product(ProductForm::kNN, ProductInput(da), ProductInput(db), ProductOutput(forward),
                 {.arithmetic = GetParam(), .part = ProductPart::kDepthToRow}, nullptr);
  launch_product(ProductForm::kTN, ProductInput(da), ProductInput(db), ProductOutput(backward),
                 {.arithmetic = GetParam(), .part = ProductPart::kDepthFromRow}, nullptr);
  Matrix found = forward.download(), transposed = backward.download();
  for (int64_t r = 0; r < kSide; ++r)
    for (int64_t n = 0; n < kN; ++n) {
      double magnitude = 0;
      double expected = reference(ProductForm::kNN, lower, b, r, n, 0, r + 1, &magnitude);
      ASSERT_NEAR(found(r, n), expected, allowed(kSide, magnitude));
      expected = reference(ProductForm::kTN, lower, b, r, n, r, kSide, &magnitude);
      ASSERT_NEAR(transposed(r, n), expected, allowed(kSide, magnitude));
    }
}

INSTANTIATE_TEST_SUITE_P(, CudaFloatProduct, ::testing::Values(ProductArithmetic::kFloat32, ProductArithmetic::kBf16),
                         [](const auto& named) {
                           return named.param == ProductArithmetic::kBf16 ? "Bf16" : "Float32";
                         });

}  // namespace
}  // namespace thimble::cuda_float_product_test
