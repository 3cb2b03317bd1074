// cuda_memory_test.cpp: results do not depend on how much memory there is; what does not fit is an error, and what
// others take meanwhile is done without. What is taken: tests/gptq/cuda_memory_use_test.cpp.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>

#include "runtime/cuda/cuda_models.h"
#include "tests/runtime/base/error_matcher.h"
#include "tests/runtime/families/golf/random_model.h"

namespace thimble::cuda_memory_test {
namespace {

constexpr int64_t kContext = 512;

// Takes all but `left` bytes of device 0's memory until it goes.
class MemoryHog {
 public:
  explicit MemoryHog(uint64_t left) {
    for (uint64_t piece = uint64_t{1} << 36; piece >= (uint64_t{2} << 20);) {
      uint64_t free_bytes = cuda_free_memory(0);
      void* memory = nullptr;
      if (free_bytes < left + piece || cudaMalloc(&memory, piece) != cudaSuccess) {
        cudaGetLastError();
        piece /= 2;
        continue;
      }
      taken_.push_back(memory);
    }
  }
  ~MemoryHog() {
    for (void* memory : taken_) cudaFree(memory);
  }

 private:
  std::vector<void*> taken_;
};

class CudaMemory : public ::testing::TestWithParam<Numerics> {
 protected:
  void SetUp() override {
    if (cuda_device_names().empty()) GTEST_SKIP() << "no CUDA device is here";
    std::vector<float> once = scores({0}, 4);  // loads what every first use of a kernel loads
    ASSERT_EQ(once.size(), 4u * 64);
  }
  std::unique_ptr<Scorer> make(const CudaPlace& place) const {
    return make_cuda_scorer(weights_, place, GetParam(), kContext);
  }
  std::vector<float> scores(const CudaPlace& place, size_t count) const { return scores(*make(place), count); }
  std::vector<float> scores(Scorer& model, size_t count) const {
    std::vector<ScoreWindow> windows;
    for (size_t w = 0; w < count; ++w) {
      std::span<const Token> all(tokens_);
      windows.push_back({all.subspan(16 * w, kContext), all.subspan(16 * w + kContext - 63, 64)});
    }
    std::vector<float> nll(count * 64, NAN);
    model.score(windows, nll);
    return nll;
  }
  MemoryPlan plan(uint64_t usable) const {
    return plan_scoring(weights_->network, GetParam(), kContext, cuda_windows_per_batch(0, kContext), usable);
  }
  std::vector<Token> generated(const CudaPlace& place) const {
    SilentProgress progress;
    return make_cuda_generator(weights_, place, GetParam(), kContext, 20)
        ->calibration(uniform_script(1024, {20, kContext, 0.8, 3}), 0, 20, progress)
        .tokens;
  }

  std::shared_ptr<const Weights> weights_ = random_golf_weights(wide_golf_config(), 3);
  std::vector<Token> tokens_ = random_tokens(8192, 1024, 4);
};

TEST_P(CudaMemory, LimitsShrinkBatchesAndChangeNothing) {
  std::vector<float> expected = scores({0}, 200);
  for (int64_t batch : {1, 2, 7}) {
    // The bytes of that batch: the largest plan below that of the next.
    uint64_t limit = plan(UINT64_MAX).bytes();
    while (plan(limit).batch > batch) limit = plan(limit - 1).bytes();
    ASSERT_EQ(plan(limit).batch, batch);
    uint64_t before = cuda_free_memory(0);
    std::unique_ptr<Scorer> model = make({0, limit});
    EXPECT_EQ(scores(*model, 200), expected) << batch;
    EXPECT_LE(before - cuda_free_memory(0), limit + (uint64_t{16} << 20));
  }
  uint64_t least = plan(UINT64_MAX).bytes();
  while (plan(least).batch > 1) least = plan(least - 1).bytes();
  expect_error<DeviceError>([&] { scores({0, least - 1}, 1); }, {"out of device memory", "1 window of 512 tokens"});
}

TEST_P(CudaMemory, LimitsShrinkGenerationAndChangeNothing) {
  std::vector<Token> expected = generated({0});
  uint64_t least = plan_generation(weights_->network, GetParam(), kContext, 1, UINT64_MAX).bytes();
  uint64_t three = plan_generation(weights_->network, GetParam(), kContext, 3, UINT64_MAX).bytes();
  EXPECT_EQ(generated({0, least}), expected);
  EXPECT_EQ(generated({0, three}), expected);
  expect_error<DeviceError>([&] { generated({0, least - 1}); }, {"out of device memory", "1 sequence of 512 tokens"});
}

// Memory that went between the plan and the allocation: half the batch, and half of that.
TEST_P(CudaMemory, WhatOthersTakeIsDoneWithout) {
  const std::vector<Token> expected = generated({0});
  // Plans with all that is free now.
  const std::unique_ptr<Generator> model = make_cuda_generator(weights_, {0}, GetParam(), kContext, 20);
  MemoryHog hog(uint64_t{32} << 20);  // not enough for keys and values of 20 sequences
  SilentProgress progress;
  EXPECT_EQ(model->calibration(uniform_script(1024, {20, kContext, 0.8, 3}), 0, 20, progress).tokens, expected);
}

INSTANTIATE_TEST_SUITE_P(Numerics, CudaMemory,
                         ::testing::Values(Numerics::kFp32, Numerics::kBf16, Numerics::kFp16, Numerics::kSf16,
                                           Numerics::kNvfp4),
                         [](const ::testing::TestParamInfo<Numerics>& test) {
                           return std::string(numerics_name(test.param));
                         });

}  // namespace
}  // namespace thimble::cuda_memory_test
