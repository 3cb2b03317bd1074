// cuda_nvfp4_test.cu: on a device: conversions give the host's bits; products with NVFP4 operands against float64; the
// uniform test; cuBLASLt's product where the device has one; a mixture-of-experts layer.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "eval/numerics/moe_reference.h"
#include "runtime/cuda/kernels/cuda_context.cuh"
#include "runtime/cuda/kernels/cuda_nvfp4.h"
#include "runtime/tensor/dtype.h"
#include "tests/runtime/codes/random_nvfp4.h"
#include "tests/runtime/cuda/kernels/cuda_device.h"

namespace thimble::cuda_nvfp4_test {
namespace {

using CudaNvfp4 = CudaTest;

// One thread per float.
__global__ void convert(const float* x, uint8_t* e2m1, uint8_t* ue4m3, float* back, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  e2m1[i] = e2m1_from_float(x[i]);
  ue4m3[i] = ue4m3_from_float(x[i]);
  back[i] = float_from_e2m1(e2m1[i]) + float_from_ue4m3(ue4m3[i]);
}

template <typename T>
std::vector<T> download(const DeviceArray<T>& array) {
  std::vector<T> values(static_cast<size_t>(array.count()));
  check_cuda(cudaMemcpy(values.data(), array.data(), array.bytes(), cudaMemcpyDeviceToHost));
  return values;
}

TEST_F(CudaNvfp4, ConversionsGiveTheHostsBits) {
  std::vector<float> x = {0.0f,
                          -0.0f,
                          std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN(),
                          464,
                          0x1p-10f,
                          0x1p-149f};
  std::mt19937 random(1);
  for (int i = 0; i < 200'000; ++i) {
    x.push_back(std::ldexp(static_cast<float>(random() >> 8), -24 - static_cast<int>(random() % 20) + 10));
    x.push_back(static_cast<float>(random() % 8192) / 16 - 8);  // many ties
  }
  const int count = static_cast<int>(x.size());
  DeviceArray<float> in{std::span<const float>(x)}, back(count);
  DeviceArray<uint8_t> e2m1(count), ue4m3(count);
  convert<<<divide_up(count, 256), 256>>>(in.data(), e2m1.data(), ue4m3.data(), back.data(), count);
  check_cuda(cudaGetLastError());
  check_cuda(cudaDeviceSynchronize());
  const std::vector<uint8_t> elements = download(e2m1), scales = download(ue4m3);
  const std::vector<float> values = download(back);
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(elements[i], e2m1_from_float(x[i])) << x[i];
    ASSERT_EQ(scales[i], ue4m3_from_float(x[i])) << x[i];
    const float expected = float_from_e2m1(elements[i]) + float_from_ue4m3(scales[i]);
    ASSERT_TRUE(values[i] == expected || (std::isnan(values[i]) && std::isnan(expected))) << x[i];
  }
}

TEST_F(CudaNvfp4, UniformCodesMultiplyToExactly72) {
  for (auto [m, n] : {std::pair<int64_t, int64_t>{1, 1}, {20, 64}, {128, 129}, {260, 36}}) {
    const Matrix c = multiply_nvfp4_on_cuda(0, uniform_nvfp4(m, 32), m, uniform_nvfp4(n, 32), n, 32);
    for (float value : c.values()) ASSERT_EQ(value, 72) << m << ' ' << n;
  }
}

// |c - x w^T| <= K units of float32 of the sum of magnitudes, far within a rounding to bf16 (2^-8 of the result's
// size).
void expect_product(const Matrix& c, const Matrix& x, const Matrix& w) {
  const double unit = 0x1p-23 * static_cast<double>(x.cols() + 4);
  for (int64_t i = 0; i < x.rows(); ++i)
    for (int64_t j = 0; j < w.rows(); ++j) {
      double exact = 0, magnitude = 0;
      for (int64_t e = 0; e < x.cols(); ++e) {
        exact += double{x(i, e)} * w(j, e);
        magnitude += std::abs(double{x(i, e)} * w(j, e));
      }
      ASSERT_LE(std::abs(c(i, j) - exact), unit * magnitude) << i << ' ' << j << " of " << exact;
    }
}

struct Shape3 {
  int64_t m, n, k;
};
constexpr Shape3 kShapes[] = {{1, 1, 1},    {1, 7, 15},     {3, 5, 16},       {17, 65, 17},   {64, 64, 32},
                              {65, 63, 33}, {128, 96, 129}, {200, 260, 1040}, {16, 2048, 512}};

TEST_F(CudaNvfp4, ProductsAreThoseOfTheValues) {
  for (const auto& [m, n, k] : kShapes) {
    const Nvfp4Codes a = random_nvfp4(m, k, 1, 0.01f), b = random_nvfp4(n, k, 2, 3);
    const Matrix c = multiply_nvfp4_on_cuda(0, a, m, b, n, k);
    expect_product(c, dequantize_nvfp4(a, m, k), dequantize_nvfp4(b, n, k));
    const Matrix again = multiply_nvfp4_on_cuda(0, a, m, b, n, k);
    EXPECT_TRUE(std::ranges::equal(c.values(), again.values())) << "the same bits every time";
  }
}

TEST_F(CudaNvfp4, ProductsWithBf16AreThoseOfTheValues) {
  for (const auto& [m, n, k] : kShapes) {
    const Nvfp4Codes b = random_nvfp4(n, k, 2, 0.3f);
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    std::vector<uint16_t> a;
    Matrix x(m, k);
    for (float& value : x.values()) {
      a.push_back(bf16_from_float(normal(random)));
      value = float_from_bf16(a.back());
    }
    expect_product(multiply_bf16_nvfp4_on_cuda(0, a, m, b, n, k), x, dequantize_nvfp4(b, n, k));
  }
}

// Every pair of element and scale is exact in bf16: rows of one element each, against rows of the identity.
TEST_F(CudaNvfp4, UnpackingIsExact) {
  Nvfp4Codes identity = nvfp4_zeros(16, 16), weights = nvfp4_zeros(127, 16);
  for (int64_t i = 0; i < 16; ++i) set_nvfp4_code(identity, 8, i, i, 2);
  std::ranges::fill(identity.block_scales, uint8_t{0x38});
  for (int64_t r = 0; r < 127; ++r) {
    weights.block_scales[static_cast<size_t>(r)] = static_cast<uint8_t>(r);
    for (int64_t k = 0; k < 16; ++k) set_nvfp4_code(weights, 8, r, k, static_cast<uint8_t>(k == 8 ? 0 : k));
  }
  const Matrix c = multiply_nvfp4_on_cuda(0, identity, 16, weights, 127, 16), w = dequantize_nvfp4(weights, 127, 16);
  for (int64_t i = 0; i < 16; ++i)
    for (int64_t r = 0; r < 127; ++r) ASSERT_EQ(c(i, r), w(r, i));
}

TEST_F(CudaNvfp4, NativeProductsAreThoseOfTheValues) {
  if (const std::string problem = why_not_native_nvfp4(0); !problem.empty()) {
    EXPECT_THROW(multiply_nvfp4_natively(0, nvfp4_zeros(1, 32), 1, nvfp4_zeros(1, 32), 1, 32), DeviceError);
    GTEST_SKIP() << problem;
  }
  for (const auto& [m, n, k] : {Shape3{16, 16, 32}, {20, 36, 64}, {128, 128, 256}, {200, 260, 1024}}) {
    const Nvfp4Codes a = random_nvfp4(m, k, 1, 0.01f), b = random_nvfp4(n, k, 2, 3);
    expect_product(multiply_nvfp4_natively(0, a, m, b, n, k), dequantize_nvfp4(a, m, k), dequantize_nvfp4(b, n, k));
  }
  const Matrix c = multiply_nvfp4_natively(0, uniform_nvfp4(128, 32), 128, uniform_nvfp4(128, 32), 128, 32);
  for (float value : c.values()) ASSERT_EQ(value, 72);
  EXPECT_THROW(multiply_nvfp4_natively(0, nvfp4_zeros(1, 48), 1, nvfp4_zeros(1, 48), 1, 48), DeviceError);
}

TEST_F(CudaNvfp4, AMixtureOfExpertsKeepsToItsBounds) {
  const MoeLayer layer = random_moe_layer(256, 128, 8, 2, 1);
  const Matrix x = random_normal_matrix(96, 256, 1, 99);
  auto multiply = [](const Nvfp4Codes& a, int64_t m, const Nvfp4Codes& b, int64_t n, int64_t k) {
    return multiply_nvfp4_on_cuda(0, a, m, b, n, k);
  };
  for (const MoeStageErrors& stage : compare_moe(layer, x, run_moe(layer, x, multiply)))
    EXPECT_TRUE(stage.passed()) << moe_stage_name(stage.stage) << ' ' << stage.worst_share;
  EXPECT_EQ(first_failure(compare_moe(layer, x, run_moe(layer, x, multiply, MoeStage::kL2)))->stage, MoeStage::kL2);
}

}  // namespace
}  // namespace thimble::cuda_nvfp4_test
