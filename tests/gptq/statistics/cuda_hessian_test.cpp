// cuda_hessian_test.cpp: Hessians summed on the device against float64 sums and against the CPU's rules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <random>

#include "gptq/statistics/hessian.cuh"
#include "runtime/base/error.h"
#include "runtime/tensor/dtype.h"
#include "tests/gptq/statistics/gptq_samples.h"
#include "tests/runtime/cuda/kernels/cuda_device.h"

namespace thimble::cuda_hessian_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::vector<std::string> kLayer = {"layer"};

// Activations in device memory, rows `stride` elements apart; the gaps are NaN.
template <typename T>
struct Activations {
  Matrix values;  // as stored
  int64_t stride = 0;
  DeviceArray<T> device;

  const T* row(int64_t r) const { return device.data() + r * stride; }
};

template <typename T>
Activations<T> upload(Matrix values, int64_t stride) {
  std::vector<float> spread(static_cast<size_t>(values.rows() * stride), std::numeric_limits<float>::quiet_NaN());
  for (int64_t r = 0; r < values.rows(); ++r)
    for (int64_t k = 0; k < values.cols(); ++k) {
      if constexpr (std::is_same_v<T, __nv_bfloat16>) values(r, k) = float_from_bf16(bf16_from_float(values(r, k)));
      if constexpr (std::is_same_v<T, __half>) values(r, k) = float_from_fp16(fp16_from_float(values(r, k)));
      spread[static_cast<size_t>(r * stride + k)] = values(r, k);
    }
  std::vector<T> stored;
  for (float value : spread)
    if constexpr (std::is_same_v<T, __nv_bfloat16>)
      stored.push_back(__float2bfloat16_rn(value));
    else if constexpr (std::is_same_v<T, __half>)
      stored.push_back(__float2half_rn(value));
    else
      stored.push_back(value);
  return {std::move(values), stride, DeviceArray<T>(std::span<const T>(stored))};
}

template <typename T>
class CudaHessian : public CudaTest {
 protected:
  // Sequences of `tokens` rows each, `per_call` of them in a call.
  SymmetricMatrix collect(const Activations<T>& x, int64_t tokens, int64_t per_call,
                          size_t workspace_bytes = size_t{1} << 30) {
    CudaStream stream;
    CudaHessianCollector collector(workspace_bytes);
    int64_t sequences = x.values.rows() / tokens;
    for (int64_t first = 0; first < sequences; first += per_call)
      collector.add(kLayer, x.row(first * tokens), x.stride, std::min(per_call, sequences - first), tokens,
                    x.values.cols(), stream);
    HessianSet hessians = std::move(collector).finish();
    EXPECT_EQ(hessians.at("layer")->token_count, sequences * tokens);
    EXPECT_EQ(hessians.at("layer")->sequence_count, sequences);
    return hessians.at("layer")->matrix;
  }
};
using Types = ::testing::Types<__nv_bfloat16, __half, float>;
TYPED_TEST_SUITE(CudaHessian, Types);

struct Shape {
  int64_t sequences, tokens, columns, stride;
};

TYPED_TEST(CudaHessian, MatchesThePlainSum) {
  uint32_t seed = std::random_device()();
  std::printf("seed %u\n", seed);
  for (Shape shape : {Shape{1, 1, 1, 1},
                      {1, 1, 5, 5},
                      {3, 7, 3, 4},
                      {2, 31, 127, 127},
                      {2, 33, 128, 128},
                      {3, 50, 129, 136},
                      {2, 100, 264, 264},
                      {4, 64, 256, 512},
                      {1, 5000, 9, 9},
                      {2, 2049, 40, 40}}) {
    SCOPED_TRACE(::testing::Message() << shape.sequences << " x " << shape.tokens << " x " << shape.columns);
    auto x = upload<TypeParam>(random_matrix(shape.sequences * shape.tokens, shape.columns, seed++), shape.stride);
    SymmetricMatrix found = this->collect(x, shape.tokens, shape.sequences), expected(shape.columns);
    for (int64_t t = 0; t < x.values.rows(); ++t)
      for (int64_t i = 0; i < shape.columns; ++i)
        for (int64_t j = 0; j <= i; ++j) expected.lower_row(i)[j] += double{x.values(t, i)} * x.values(t, j);
    for (double& value : expected.values()) value /= static_cast<double>(x.values.rows());
    ASSERT_EQ(found.size(), shape.columns);
    // One rounding of a float32 sum per token; the tensor cores' is a truncation.
    double rounding = static_cast<double>(std::min<int64_t>(shape.tokens, 2048)) * 0x1p-23;
    for (int64_t i = 0; i < shape.columns; ++i)
      for (int64_t j = 0; j <= i; ++j)
        ASSERT_NEAR(found(i, j), expected(i, j), rounding * std::sqrt(expected(i, i) * expected(j, j)))
            << i << ' ' << j;
  }
}

TYPED_TEST(CudaHessian, SameBitsHoweverSequencesAreGrouped) {
  auto x = upload<TypeParam>(random_matrix(7 * 300, 200, 3), 200);
  SymmetricMatrix all = this->collect(x, 300, 7);
  EXPECT_GT(all(199, 199), 0.5);
  EXPECT_EQ(this->collect(x, 300, 7), all);
  for (int64_t per_call : {1, 2, 3}) EXPECT_EQ(this->collect(x, 300, per_call), all) << per_call;
  EXPECT_EQ(this->collect(x, 300, 7, 1), all);        // one product at a time
  EXPECT_EQ(this->collect(x, 300, 7, 500'000), all);  // two
}

TYPED_TEST(CudaHessian, SmallTermsSurviveManySequences) {
  // In float32, 2^24 + 1 is 2^24: the sum over sequences has to be kept in float64.
  Matrix x(11, 1);
  for (float& value : x.values()) value = 1;
  x(0, 0) = 4096;
  EXPECT_EQ(this->collect(upload<TypeParam>(x, 1), 1, 11)(0, 0), (16777216.0 + 10) / 11);
}

TYPED_TEST(CudaHessian, NamesWhatIsNotFinite) {
  for (float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 1e20F}) {
    Matrix values = random_matrix(12 * 50, 150, 4);
    values(7 * 50 + 3, 140) = bad;
    values(9 * 50 + 3, 2) = bad;
    auto x = upload<TypeParam>(values, 150);
    try {
      this->collect(x, 50, 5);
      ADD_FAILURE() << "nothing was thrown for " << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadInput);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("'layer'"), HasSubstr("sequence 7:"), HasSubstr("column 140 ")));
    }
  }
}

TYPED_TEST(CudaHessian, LayersWithOneInputShareOneHessian) {
  std::vector<std::string> attention = {"q", "k", "v"}, mlp = {"fc"};
  auto x = upload<TypeParam>(random_matrix(20, 4, 1), 4);
  auto y = upload<TypeParam>(random_matrix(20, 6, 2), 6);
  CudaStream stream;
  CudaHessianCollector collector;
  for (int64_t sequence = 0; sequence < 2; ++sequence) {
    collector.add(attention, x.row(10 * sequence), 4, 1, 10, 4, stream);
    collector.add(mlp, y.row(10 * sequence), 6, 1, 10, 6, stream);
  }
  HessianSet hessians = std::move(collector).finish();
  ASSERT_EQ(hessians.size(), 4U);
  EXPECT_EQ(hessians.at("q"), hessians.at("v"));
  EXPECT_EQ(hessians.at("q")->matrix, this->collect(x, 10, 2));
  EXPECT_EQ(hessians.at("fc")->matrix, this->collect(y, 10, 2));
}

TYPED_TEST(CudaHessian, RefusesInconsistentObservations) {
  std::vector<std::string> both = {"q", "k"}, one = {"q"}, other = {"fc"};
  auto x = upload<TypeParam>(random_matrix(4, 4, 1), 4);
  CudaStream stream;
  CudaHessianCollector changed;
  changed.add(both, x.row(0), 4, 1, 2, 4, stream);
  EXPECT_THROW(changed.add(one, x.row(0), 4, 1, 2, 4, stream), Error);
  EXPECT_THROW(changed.add(both, x.row(0), 4, 1, 2, 3, stream), Error);

  CudaHessianCollector uneven;
  uneven.add(one, x.row(0), 4, 2, 2, 4, stream);
  uneven.add(other, x.row(0), 4, 1, 2, 4, stream);
  EXPECT_THROW(std::move(uneven).finish(), Error);

  CudaHessianCollector nothing;
  nothing.add(one, x.row(0), 4, 2, 0, 4, stream);
  EXPECT_THROW(std::move(nothing).finish(), Error);
}

}  // namespace
}  // namespace thimble::cuda_hessian_test
