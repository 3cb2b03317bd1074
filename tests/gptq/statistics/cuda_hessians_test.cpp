// cuda_hessians_test.cpp: Hessians of a whole model collected on the device against the CPU's.
#include "gptq/statistics/statistics_sum.h"

#include <gtest/gtest.h>

#include <cmath>

#include "gptq/statistics/hessian_groups.h"
#include "runtime/cpu/cpu_pass.h"
#include "tests/runtime/cuda/kernels/cuda_device.h"
#include "tests/runtime/families/golf/random_model.h"
#include "tests/runtime/families/gpt2/random_gpt2.h"
#include "tests/runtime/ops/changed_matrix.h"

namespace thimble::cuda_hessians_test {
namespace {

class CudaHessians : public CudaTest {
 protected:
  static constexpr int64_t kSequences = 5, kLength = 41;

  HessianSet on_cuda(Numerics numerics, std::vector<int> ordinals = {0}, uint64_t limit_bytes = kNoMemoryLimit) const {
    return collect(sequences, {true, std::move(ordinals), numerics, limit_bytes});
  }
  HessianSet collect(const TokenSequences& tokens, const Device& device) const {
    SilentProgress progress;
    return collect_hessians_cuda(model, device, tokens, model->network->linear_inputs(), progress);
  }
  static void expect_equal(const HessianSet& found, const HessianSet& expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (const auto& [layer, hessian] : expected) {
      EXPECT_EQ(found.at(layer)->matrix, hessian->matrix) << layer;
      EXPECT_EQ(found.at(layer)->token_count, hessian->token_count) << layer;
      EXPECT_EQ(found.at(layer)->sequence_count, hessian->sequence_count) << layer;
    }
  }
  HessianSet on_cpu() const { return cpu_hessians(*model, NumericPolicy{}, sequences); }
  static HessianSet cpu_hessians(const Weights& weights, const NumericPolicy& policy, const TokenSequences& tokens) {
    CpuPass pass(weights, tokens.length, policy);
    HessianCollector collector;
    for (int64_t s = 0; s < tokens.count; ++s)
      pass.run(window_batch(tokens.sequence(s).first(static_cast<size_t>(tokens.length - 1))), nullptr, 0, &collector);
    return std::move(collector).finish();
  }
  // The same layers, sharing alike; elements within `tolerance` of their columns' deviations, or of `floor` times the
  // mean square of all columns.
  static void expect_near(const HessianSet& found, const HessianSet& expected, double tolerance, double floor = 0) {
    ASSERT_EQ(found.size(), expected.size());
    for (const auto& [layer, reference] : expected) {
      SCOPED_TRACE(layer);
      ASSERT_TRUE(found.contains(layer));
      const Hessian& hessian = *found.at(layer);
      ASSERT_EQ(hessian.matrix.size(), reference->matrix.size());
      EXPECT_EQ(hessian.token_count, reference->token_count);
      EXPECT_EQ(hessian.sequence_count, reference->sequence_count);
      for (const auto& [other, other_reference] : expected)
        EXPECT_EQ(found.at(layer) == found.at(other), reference == other_reference) << other;
      const SymmetricMatrix& h = reference->matrix;
      double mean = 0;
      for (int64_t i = 0; i < h.size(); ++i) mean += h(i, i) / static_cast<double>(h.size());
      for (int64_t i = 0; i < h.size(); ++i)
        for (int64_t j = 0; j <= i; ++j) {
          const double scale = std::max(std::sqrt(h(i, i) * h(j, j)), floor * mean);
          ASSERT_NEAR(hessian.matrix(i, j), h(i, j), tolerance * scale) << i << ' ' << j;
        }
    }
  }

  std::shared_ptr<const Weights> model = random_golf_weights(small_golf_config(), 3);
  TokenSequences sequences{kSequences, kLength, random_tokens(kSequences* kLength, model->network->vocabulary(), 4)};
};

TEST_F(CudaHessians, AreTheCpusInFloat32) { expect_near(on_cuda(Numerics::kFp32), on_cpu(), 1e-4); }

// 8 bits of significand through five layers.
TEST_F(CudaHessians, AreNearTheCpusInBf16) { expect_near(on_cuda(Numerics::kBf16), on_cpu(), 0.1); }

// Statistics of every mode and of another family; what rounds in the mode itself is allowed for.
TEST_F(CudaHessians, AreNearTheCpusInEveryMode) {
  for (const std::shared_ptr<const Weights>& weights : {model, random_gpt2_weights(small_gpt2_config(), 3)}) {
    const TokenSequences tokens{3, 33, random_tokens(3 * 33, weights->network->vocabulary(), 4)};
    for (Numerics numerics : kAllNumerics) {
      SCOPED_TRACE(numerics_name(numerics));
      Weights rounded = *weights;
      round_weights(numeric_policy(numerics), rounded);
      SilentProgress progress;
      // A value that is staged in NVFP4 moves by up to a quarter when a rounding before it falls to the other side, and
      // a small one by more: its block's scale is that of the largest.
      const bool is_nvfp4 = numerics == Numerics::kNvfp4;
      const double tolerance = numerics == Numerics::kFp32 ? 1e-3 : is_nvfp4 ? 0.4 : 0.15;
      expect_near(
          collect_hessians_cuda(weights, {true, {0}, numerics}, tokens, weights->network->linear_inputs(), progress),
          cpu_hessians(rounded, numeric_policy(numerics), tokens), tolerance, is_nvfp4 ? 1 : 0);
    }
  }
}

TEST_F(CudaHessians, AreTheSameBitsAgain) { expect_equal(on_cuda(Numerics::kBf16), on_cuda(Numerics::kBf16)); }

// Device 0 stands for several: each of them collects its share by itself.
TEST_F(CudaHessians, DoNotDependOnTheNumberOfDevices) {
  for (Numerics numerics : {Numerics::kFp32, Numerics::kBf16})
    for (int64_t count : {1, 5, 13, 24}) {
      TokenSequences tokens{count, kLength, random_tokens(count * kLength, model->network->vocabulary(), 6)};
      HessianSet expected = collect(tokens, {true, {0}, numerics});
      EXPECT_EQ(expected.begin()->second->sequence_count, count);
      for (size_t devices : {2, 3, 4, 8, 11}) {
        SCOPED_TRACE(std::to_string(count) + " sequences on " + std::to_string(devices) + " devices");
        expect_equal(collect(tokens, {true, std::vector<int>(devices, 0), numerics}), expected);
      }
    }
}

TEST_F(CudaHessians, DoNotDependOnTheBatch) {
  TokenSequences tokens{40, kLength, random_tokens(40 * kLength, model->network->vocabulary(), 6)};
  HessianSet expected = collect(tokens, {true, {0}, Numerics::kBf16});
  // The least limit that a sequence at a time fits in.
  uint64_t least = plan_hessians(model->network, Numerics::kBf16, kLength, model->network->linear_inputs(), 1,
                                 live_sums(8), UINT64_MAX)
                       .bytes();
  expect_equal(collect(tokens, {true, {0}, Numerics::kBf16, least}), expected);
  EXPECT_THROW(collect(tokens, {true, {0}, Numerics::kBf16, least - 1}), DeviceError);
}

// Where a device has no room for all, they come in several passes, each within its memory, and are the same.
TEST_F(CudaHessians, DoNotDependOnTheGroups) {
  TokenSequences tokens{16, kLength, random_tokens(16 * kLength, model->network->vocabulary(), 6)};
  const HessianSet expected = collect(tokens, {true, {0}, Numerics::kBf16});
  const std::vector<LinearInput> inputs = model->network->linear_inputs();
  auto needed = [&](std::span<const LinearInput> together) {
    return plan_hessians(model->network, Numerics::kBf16, kLength, together, 1, live_sums(8), kNoMemoryLimit).bytes();
  };
  // Between all and none.
  const Device device{true, {0}, Numerics::kBf16, (needed({}) + needed(inputs)) / 2};
  const HessianGroups plan = group_hessians(model->network, device, tokens.count, kLength, /*with_loss=*/false, 0);
  ASSERT_GT(plan.groups.size(), 1U);
  SilentProgress progress;
  HessianSet found;
  for (const std::vector<LinearInput>& group : plan.groups) {
    EXPECT_TRUE(group.size() == 1 || needed(group) <= device.memory_limit_bytes);
    found.merge(collect_hessians_cuda(model, device, tokens, group, progress));
  }
  expect_equal(found, expected);
}

TEST_F(CudaHessians, NameTheSequenceThatIsNotFinite) {
  auto damaged = std::make_shared<Weights>(*random_golf_weights(small_golf_config(), 3));
  TokenSequences tokens{16, kLength, std::vector<Token>(static_cast<size_t>(16 * kLength), 1)};
  // Token 2 occurs in one sequence only, of the sixth part.
  tokens.tokens[static_cast<size_t>(11 * kLength + 7)] = 2;
  change_matrix(*damaged, damaged->network->id_of(kValueEmbedding), [](Matrix& values) {
    for (int64_t c = 0; c < values.cols(); ++c) values(2, c) = NAN;
  });
  SilentProgress progress;
  for (size_t devices : {1, 3}) {
    try {
      collect_hessians_cuda(damaged, {true, std::vector<int>(devices, 0), Numerics::kFp32}, tokens,
                            damaged->network->linear_inputs(), progress);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("of sequence 11"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace thimble::cuda_hessians_test
