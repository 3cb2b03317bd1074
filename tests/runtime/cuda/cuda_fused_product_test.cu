// cuda_fused_product_test.cu: the products beside an activation against the same in kernels of their own, bit by
// bit, on awkward sizes, in place and not, between NaN guards, into memory full of NaN.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "runtime/cuda/cuda_gradient_products.cuh"
#include "runtime/cuda/cuda_gradient_rows.cuh"
#include "runtime/cuda/kernels/cuda_sm90.cuh"
#include "tests/runtime/cuda/kernels/cuda_device.h"
#include "tests/runtime/cuda/kernels/device_copy.h"

namespace thimble::cuda_fused_product_test {
namespace {

using Factor = BasicProductInput<__nv_bfloat16>;
constexpr int64_t kGuard = 8;  // keeps rows aligned

struct Sizes {
  int64_t m, n, k;
};
constexpr Sizes kSizes[] = {{1, 8, 8}, {130, 40, 24}, {127, 128, 64}, {300, 264, 512}};
constexpr Activation kActivations[] = {Activation::kLeakyReluSquared, Activation::kGeluTanh, Activation::kSilu};

class CudaFusedProduct : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (!IsSkipped() && !has_sm90_kernels()) GTEST_SKIP() << "no such kernels for this device";
  }
  static NodeRows<__nv_bfloat16> rows_of(Bf16View x) { return {x.data, x.rows, x.columns, x.stride, x.columns}; }
  static Matrix preactivations(const Sizes& s) { return random_values(s.m, s.n, 5, -3, 3); }
};

// Of products in bf16, as passes store them.
void expect_equal(const Matrix& found, const Matrix& expected) {
  EXPECT_TRUE(std::ranges::equal(found.values(), expected.values()));
}

TEST_F(CudaFusedProduct, IsTheActivationOfTheProduct) {
  for (const Sizes& s : kSizes)
    for (Activation activation : kActivations)
      for (bool has_bias : {false, true}) {
        SCOPED_TRACE(::testing::Message() << s.m << " x " << s.n << " x " << s.k << ", activation "
                                          << static_cast<int>(activation) << (has_bias ? ", bias" : ""));
        const Bf16DeviceCopy a(random_values(s.m, s.k, 1), kGuard), b(random_values(s.n, s.k, 2), kGuard);
        const DeviceCopy biases(random_values(1, s.n, 3), kGuard);
        const float* bias = has_bias ? biases.data() : nullptr;
        auto empty = [&] { return Bf16DeviceCopy::poisoned(s.m, s.n, kGuard); };
        const Bf16DeviceCopy z = empty(), y = empty(), kept = empty(), beside = empty(), instead = empty();
        launch_gradient_product(ProductForm::kNT, Factor(a), Factor(b), BasicProductOutput<__nv_bfloat16>(z),
                                /*add=*/false, /*batch=*/1, nullptr);
        const CudaNodeRows<__nv_bfloat16> rows(nullptr);
        if (bias) rows.add_bias(bias, rows_of(z));
        rows.activate(activation, rows_of(z), {}, rows_of(y));
        ASSERT_TRUE(launch_activated_product(Factor(a), Factor(b), bias, activation, kept, beside, nullptr));
        ASSERT_TRUE(launch_activated_product(Factor(a), Factor(b), bias, activation, {}, instead, nullptr));
        expect_equal(kept.download(), z.download());
        expect_equal(beside.download(), y.download());
        expect_equal(instead.download(), y.download());
      }
}

TEST_F(CudaFusedProduct, IsTheGradientThroughTheActivation) {
  for (const Sizes& s : kSizes)
    for (Activation activation : kActivations) {
      SCOPED_TRACE(::testing::Message() << s.m << " x " << s.n << " x " << s.k << ", activation "
                                        << static_cast<int>(activation));
      const Bf16DeviceCopy dy(random_values(s.m, s.k, 1), kGuard), w(random_values(s.k, s.n, 2), kGuard),
          z(preactivations(s), kGuard), overwritten(preactivations(s), kGuard);
      const Bf16DeviceCopy expected = Bf16DeviceCopy::poisoned(s.m, s.n, kGuard),
                           found = Bf16DeviceCopy::poisoned(s.m, s.n, kGuard);
      launch_gradient_product(ProductForm::kNN, Factor(dy), Factor(w), BasicProductOutput<__nv_bfloat16>(expected),
                              /*add=*/false, /*batch=*/1, nullptr);
      CudaGradientRows<__nv_bfloat16>(nullptr).activate(activation, z, expected, /*adds=*/false, expected);
      ASSERT_TRUE(launch_activation_gradient(Factor(dy), Factor(w), activation, z, found, nullptr));
      ASSERT_TRUE(launch_activation_gradient(Factor(dy), Factor(w), activation, overwritten, overwritten, nullptr));
      expect_equal(found.download(), expected.download());
      expect_equal(overwritten.download(), expected.download());
    }
}

// Rows that no kernel reads or writes 16 bytes at a time are the caller's to do in two steps; nothing is written.
TEST_F(CudaFusedProduct, LeavesWhatIsNotAligned) {
  constexpr int64_t kM = 20, kN = 16, kK = 8;
  const Bf16DeviceCopy a(random_values(kM, kK, 1), kGuard), b(random_values(kN, kK, 2), kGuard),
      w(random_values(kK, kN, 2), kGuard), z(random_values(kM, kN, 3), kGuard), shifted_a(random_values(kM, kK, 1), 7);
  const DeviceCopy bias(random_values(1, kN, 3), 7);
  const Bf16DeviceCopy y = Bf16DeviceCopy::poisoned(kM, kN, kGuard), shifted = Bf16DeviceCopy::poisoned(kM, kN, 7);
  constexpr Activation kActivation = Activation::kSilu;
  EXPECT_FALSE(launch_activated_product(Factor(shifted_a), Factor(b), nullptr, kActivation, {}, y, nullptr));
  EXPECT_FALSE(launch_activated_product(Factor(a), Factor(b), bias.data(), kActivation, {}, y, nullptr));
  EXPECT_FALSE(launch_activated_product(Factor(a), Factor(b), nullptr, kActivation, shifted, y, nullptr));
  EXPECT_FALSE(launch_activated_product(Factor(a), Factor(b), nullptr, kActivation, {}, shifted, nullptr));
  EXPECT_FALSE(launch_activation_gradient(Factor(shifted_a), Factor(w), kActivation, z, y, nullptr));
  EXPECT_FALSE(launch_activation_gradient(Factor(a), Factor(w), kActivation, z, shifted, nullptr));
  for (const Bf16DeviceCopy* untouched : {&y, &shifted}) {
    const Matrix stored = untouched->download();
    for (float value : stored.values()) ASSERT_TRUE(std::isnan(value));
  }
}

}  // namespace
}  // namespace thimble::cuda_fused_product_test
