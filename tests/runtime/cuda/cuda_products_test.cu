// cuda_products_test.cu: products with what follows them against float64: roundings and biases of linear layers,
// products that leave the range of fp16 before their norm brings them back, losses of an output head.
#include "runtime/cuda/cuda_products.cuh"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "runtime/base/random.h"
#include "runtime/cuda/kernels/cuda_rows.cuh"
#include "tests/runtime/cuda/kernels/cuda_device.h"

namespace thimble::cuda_products_test {
namespace {

// y (rows, columns) = x (rows, depth) w^T.
template <typename T>
class ProductCheck {
 public:
  ProductCheck(int64_t rows, int columns, int depth, double x_size)
      : rows_(rows),
        columns_(columns),
        depth_(depth),
        x_(fill(rows * depth, 1, x_size)),
        w_(fill(int64_t{columns} * depth, 2, 2 / std::sqrt(depth))) {
    for (int c = 0; c < columns; ++c) bias_.push_back(static_cast<float>(uniform_at(3, 3, static_cast<uint64_t>(c))));
    for (int64_t r = 0; r < rows; ++r) {
      double sum = 0;
      for (int k = 0; k < depth; ++k) sum += std::pow(value(x_, r * depth + k), 2);
      squares_.push_back(static_cast<float>(sum));
    }
    const std::vector<float> x(x_.begin(), x_.end()), w(w_.begin(), w_.end());
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) {
        double product = 0;
        for (int k = 0; k < depth; ++k)
          product += double{x[static_cast<size_t>(r * depth + k)]} * w[static_cast<size_t>(c * depth + k)];
        products_.push_back(product);
      }
    x_device_ = DeviceArray<T>(std::span<const T>(x_));
    w_device_ = DeviceArray<T>(std::span<const T>(w_));
    bias_device_ = DeviceArray<float>(std::span<const float>(bias_));
    squares_device_ = DeviceArray<float>(std::span<const float>(squares_));
    y_device_ = DeviceArray<T>(rows * columns);
  }

  GemmOperands<T> operands() const { return {x_device_.data(), depth_, w_device_.data(), rows_, columns_, depth_}; }
  T* y() const { return y_device_.data(); }
  double product(int64_t row, int column) const { return products_[static_cast<size_t>(row * columns_ + column)]; }
  const float* bias() const { return bias_device_.data(); }
  float bias_at(int column) const { return bias_[static_cast<size_t>(column)]; }
  RowNorm norm() const { return {{squares_device_.data(), 1, rows_}, 1.0f / static_cast<float>(depth_), 1, 0}; }
  // The same norm, of sums of squares in so many equal parts.
  RowNorm norm(int parts) {
    std::vector<float> in_parts;
    for (int i = 0; i < parts; ++i)
      for (const float sum : squares_) in_parts.push_back(sum / static_cast<float>(parts));
    parts_device_ = DeviceArray<float>(std::span<const float>(in_parts));
    RowNorm in = norm();
    in.squares = {parts_device_.data(), parts, rows_};
    return in;
  }
  // What nobody stores afterwards equals nothing.
  void forget() { y_device_.fill_bytes(0xff, nullptr); }
  // y of the first `rows` rows.
  std::vector<T> stored(int64_t rows) const {
    check_cuda(cudaDeviceSynchronize());
    std::vector<T> values(static_cast<size_t>(rows * columns_));
    check_cuda(cudaMemcpy(values.data(), y(), values.size() * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }
  double norm_at(int64_t row) const { return 1 / std::sqrt(squares_[static_cast<size_t>(row)] / depth_); }

  // expected(product, row, column); `most` of the larger of 1 and its size.
  template <typename Expected>
  void expect(const std::string& what, const Expected& expected, double most) const {
    SCOPED_TRACE(what + ": " + std::to_string(rows_) + " x " + std::to_string(columns_) + " x " +
                 std::to_string(depth_));
    const std::vector<T> found = stored(rows_);
    int64_t wrong = 0;
    std::string first;
    for (int64_t r = 0; r < rows_; ++r)
      for (int c = 0; c < columns_; ++c) {
        const double product = products_[static_cast<size_t>(r * columns_ + c)];
        const double y = expected(product, r, c), got = value(found, r * columns_ + c);
        if (std::abs(got - y) <= most * std::max(1.0, std::abs(y))) continue;
        if (++wrong == 1)
          first = "row " + std::to_string(r) + " column " + std::to_string(c) + ": " + std::to_string(got) + ", not " +
                  std::to_string(y) + " of product " + std::to_string(product);
      }
    EXPECT_EQ(wrong, 0) << first;
  }

 private:
  static std::vector<T> fill(int64_t count, uint64_t seed, double size) {
    std::vector<T> values;
    for (int64_t i = 0; i < count; ++i)
      values.push_back(T(static_cast<float>((2 * uniform_at(seed, 5, static_cast<uint64_t>(i)) - 1) * size)));
    return values;
  }
  static double value(const std::vector<T>& values, int64_t i) {
    return double{static_cast<float>(values[static_cast<size_t>(i)])};
  }

  int64_t rows_;
  int columns_, depth_;
  std::vector<T> x_, w_;
  std::vector<float> bias_, squares_;
  std::vector<double> products_;
  DeviceArray<T> x_device_, w_device_, y_device_;
  DeviceArray<float> bias_device_, squares_device_, parts_device_;
};

template <typename T>
constexpr double kMost = sizeof(T) == 4              ? 1e-5
                         : std::is_same_v<T, __half> ? 0.002
                                                     : 0.012;
template <typename T>
constexpr Format kStorage = sizeof(T) == 4              ? Format::kFp32
                            : std::is_same_v<T, __half> ? Format::kFp16
                                                        : Format::kBf16;

template <typename T>
void expect_products(const Rounding& rounding, double x_size) {
  for (bool stepping : {false, true})
    for (const auto& [rows, columns, depth] :
         {std::tuple(1, 8, 8), {300, 264, 136}, {130, 512, 512}, {64, 40, 72}, {300, 1792, 40}, {70, 4104, 72}}) {
      const CudaProducts<T> products(stepping);
      const ProductCheck<T> check(rows, columns, depth, x_size);
      const std::string where = stepping ? "step" : products.uses_sm90() ? "sm_90" : "window";
      products.linear(check.operands(), {check.y(), columns, rounding, nullptr}, nullptr);
      check.expect(
          where, [&](double p, int64_t, int) { return rounding(static_cast<float>(p)); }, kMost<T>);
      products.linear(check.operands(), {check.y(), columns, rounding, check.bias()}, nullptr);
      check.expect(
          where + " with bias",
          [&](double p, int64_t, int c) { return rounding(rounding(static_cast<float>(p)) + check.bias_at(c)); },
          kMost<T>);
    }
}

using CudaProductsTest = CudaTest;

TEST_F(CudaProductsTest, LinearLayersInFp32) { expect_products<float>({}, 1); }
TEST_F(CudaProductsTest, LinearLayersInBf16) { expect_products<__nv_bfloat16>({Format::kFp32, Format::kBf16}, 1); }
TEST_F(CudaProductsTest, LinearLayersInFp16) { expect_products<__half>({Format::kFp32, Format::kFp16}, 1); }
// Some products lie beyond +-0.999.
TEST_F(CudaProductsTest, LinearLayersInQ115) {
  expect_products<__nv_bfloat16>({Format::kQ115, Format::kBf16}, 0.5);
  expect_products<__nv_bfloat16>({Format::kQ131Q115, Format::kBf16}, 0.5);
}

// Rows whose norm is deferred: products of 1e5 and of 1e-4 become what they are of normed rows.
template <typename T>
void expect_normed() {
  for (bool stepping : {false, true})
    for (const auto& [rows, columns, depth] : {std::tuple(300, 264, 136), {64, 1792, 512}, {40, 48, 1056}})
      for (double x_size : {1e-4, 1.0, 6e4}) {
        const CudaProducts<T> products(stepping);
        ProductCheck<T> check(rows, columns, depth, x_size);
        for (const int parts : {1, 16, 70}) {
          products.activate(check.operands(), check.norm(parts), Activation::kSilu, check.bias(), check.y(), columns,
                            nullptr);
          check.expect(
              (stepping ? "step, " : "window, ") + std::to_string(parts) + " parts, rows of " + std::to_string(x_size),
              [&](double p, int64_t r, int c) {
                const double z = p * check.norm_at(r) + check.bias_at(c);
                return z / (1 + std::exp(-z));
              },
              2 * kMost<T>);
        }
      }
}
TEST_F(CudaProductsTest, DeferredNormsInFp32) { expect_normed<float>(); }
TEST_F(CudaProductsTest, DeferredNormsInBf16) { expect_normed<__nv_bfloat16>(); }
TEST_F(CudaProductsTest, DeferredNormsInFp16) { expect_normed<__half>(); }

// Whatever tiles their number asks for.
TEST_F(CudaProductsTest, RowsOfAStepHaveTheSameBitsInAnyBatch) {
  using T = __nv_bfloat16;
  for (const auto& [columns, depth] : {std::pair(1792, 512), {512, 1792}, {1024, 40}}) {
    const CudaProducts<T> products(/*stepping=*/true);
    ProductCheck<T> check(130, columns, depth, 1);
    auto first_rows = [&](int64_t rows, int64_t compared) {
      GemmOperands<T> operands = check.operands();
      operands.rows = rows;
      check.forget();
      products.activate(operands, check.norm(16), Activation::kSilu, nullptr, check.y(), columns, nullptr);
      std::vector<float> values;
      for (const T value : check.stored(compared)) values.push_back(static_cast<float>(value));
      return values;
    };
    for (const int64_t rows : {1, 20, 64, 100}) {
      SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(columns) + " x " + std::to_string(depth));
      const std::vector<float> alone = first_rows(rows, rows);
      EXPECT_EQ(alone, first_rows(130, rows));
    }
  }
}

// Of the first `rows` rows of a head with fewer tokens than columns; without norms where `cap` is 0.
template <typename T>
std::vector<float> head_losses(const ProductCheck<T>& check, int64_t rows, int vocabulary, float cap,
                               const std::vector<int32_t>& targets) {
  const CudaProducts<T> products(/*stepping=*/false);
  GemmOperands<T> operands = check.operands();
  operands.rows = rows;
  const DeviceArray<int32_t> next{std::span<const int32_t>(targets)};
  const DeviceArray<float2> parts(rows * CudaProducts<T>::most_loss_tiles(operands.columns));
  const DeviceArray<float> target_logits(rows), log_sums(rows), losses(rows);
  const RowNorm norm = cap == 0 ? RowNorm{} : check.norm();
  products.template loss<false>(
      operands, LossEpilogue<false>{{norm, cap}, next.data(), vocabulary, parts.data(), target_logits.data(), rows},
      nullptr);
  launch_finish_loss(parts.data(), products.loss_tiles(operands.columns), rows, target_logits.data(), log_sums.data(),
                     losses.data(), nullptr);
  check_cuda(cudaDeviceSynchronize());
  std::vector<float> found(static_cast<size_t>(rows));
  check_cuda(cudaMemcpy(found.data(), losses.data(), losses.bytes(), cudaMemcpyDeviceToHost));
  return found;
}

template <typename T>
void expect_losses() {
  for (const auto& [rows, vocabulary, depth] :
       {std::tuple(1, 5, 8), {300, 261, 136}, {130, 512, 520}, {70, 4103, 72}, {2200, 300, 40}})
    for (const float cap : {0.0f, 3.0f}) {
      SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(vocabulary) + ", cap " + std::to_string(cap));
      const ProductCheck<T> check(rows, (vocabulary + 7) / 8 * 8, depth, 1);
      std::vector<int32_t> targets;
      for (int r = 0; r < rows; ++r) targets.push_back(r * 7919 % vocabulary);
      const std::vector<float> found = head_losses(check, rows, vocabulary, cap, targets);
      for (int r = 0; r < rows; ++r) {
        auto logit = [&](int c) {
          const double p = check.product(r, c);
          return cap == 0 ? p : cap * std::tanh(p * check.norm_at(r) / cap);
        };
        double sum = 0;
        for (int c = 0; c < vocabulary; ++c) sum += std::exp(logit(c));
        const double expected = std::log(sum) - logit(targets[static_cast<size_t>(r)]);
        ASSERT_NEAR(found[static_cast<size_t>(r)], expected, 1e-4) << r;
      }
      EXPECT_EQ(head_losses(check, 1, vocabulary, 0, targets)[0], head_losses(check, rows, vocabulary, 0, targets)[0]);
    }
}
TEST_F(CudaProductsTest, LossesOfAHeadInFp32) { expect_losses<float>(); }
TEST_F(CudaProductsTest, LossesOfAHeadInBf16) { expect_losses<__nv_bfloat16>(); }
TEST_F(CudaProductsTest, LossesOfAHeadInFp16) { expect_losses<__half>(); }

// Tiles of steps are taller for many rows.
TEST_F(CudaProductsTest, RowsOfStepsDoNotDependOnTheirNumber) {
  using T = __nv_bfloat16;
  const CudaProducts<T> products(/*stepping=*/true);
  constexpr int kRows = 300, kColumns = 1792, kDepth = 520;
  const ProductCheck<T> check(kRows, kColumns, kDepth, 1);
  auto first_row = [&](int64_t rows) {
    GemmOperands<T> operands = check.operands();
    operands.rows = rows;
    check_cuda(cudaMemset(check.y(), 0, kColumns * sizeof(T)));
    products.linear(operands, {check.y(), kColumns}, nullptr);
    std::vector<uint16_t> bits(kColumns);
    check_cuda(cudaMemcpy(bits.data(), check.y(), bits.size() * sizeof(bits[0]), cudaMemcpyDeviceToHost));
    return bits;
  };
  const std::vector<uint16_t> alone = first_row(1);
  for (const int64_t rows : {2, 64, 300}) EXPECT_EQ(first_row(rows), alone) << rows << " rows";
}

}  // namespace
}  // namespace thimble::cuda_products_test
