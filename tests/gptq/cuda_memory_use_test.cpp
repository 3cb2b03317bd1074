// cuda_memory_use_test.cpp: what each command takes of a device is what its plan counted, for every family, within 3 %
// or 16 MiB. Of a test program of its own run, since other tests may not use the device meanwhile.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <iostream>
#include <thread>

#include "gptq/factor/input_pairs.h"
#include "gptq/statistics/statistics_sum.h"
#include "runtime/cuda/cuda_models.h"
#include "tests/runtime/cuda/kernels/cuda_device.h"
#include "tests/runtime/families/golf/random_model.h"
#include "tests/runtime/families/gpt2/random_gpt2.h"
#include "tests/runtime/families/llama/random_llama.h"

namespace thimble::cuda_memory_use_test {
namespace {

constexpr int64_t kSequences = 64, kLength = 512;

// Watches a device's free memory from a thread of its own.
class LeastFree {
 public:
  LeastFree()
      : thread_([this] {
          while (!done_) least_ = std::min(least_.load(), cuda_free_memory(0));
        }) {}
  uint64_t stop() {
    done_ = true;
    thread_.join();
    return least_;
  }

 private:
  std::atomic<bool> done_ = false;
  std::atomic<uint64_t> least_ = UINT64_MAX;
  std::thread thread_;
};

struct FamilyCase {
  std::string name;
  std::shared_ptr<const Weights> (*make)();
};

std::shared_ptr<const Weights> golf() { return random_golf_weights(wide_golf_config(), 3); }

std::shared_ptr<const Weights> gpt2() {
  Gpt2Config config = small_gpt2_config();
  config.vocab_size = 1024;
  config.num_positions = 2 * kLength;
  config.num_heads = 8;
  config.model_dim = 512;
  config.mlp_dim = 2048;
  return random_gpt2_weights(config, 3);
}

std::shared_ptr<const Weights> llama_like(std::string_view model_type, int64_t head_dim) {
  LlamaConfig config = small_llama_config(model_type);
  config.vocab_size = 1024;
  config.num_heads = 8;
  config.head_dim = head_dim;
  config.model_dim = 512;
  config.mlp_dim = 1408;
  config.query_scalar = static_cast<double>(head_dim);
  if (config.window > 0) config.window = kLength / 4;
  return llama_weights(config, random_llama_tensors(config, 3));
}

std::shared_ptr<const Weights> llama() { return llama_like("llama", 64); }
// Norms of heads, local layers, heads wider than the model's part.
std::shared_ptr<const Weights> gemma() { return llama_like("gemma3_text", 128); }

class CudaMemoryUse : public CudaTest, public ::testing::WithParamInterface<FamilyCase> {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    model_ = GetParam().make();
    network_ = model_->network;
    tokens_ = {kSequences, kLength, random_tokens(kSequences * kLength, network_->vocabulary(), 4)};
  }

  // Once for what every first use of a kernel loads, and once more.
  static void expect_use(const MemoryPlan& plan, const std::function<void()>& run) {
    run();
    const uint64_t before = cuda_free_memory(0);
    LeastFree watch;
    run();
    const auto used = static_cast<double>(before - watch.stop()), planned = static_cast<double>(plan.bytes());
    std::cout << "used " << used << " B, planned " << planned << " B\n";
    EXPECT_NEAR(used, planned, std::max(0.03 * planned, 16.0 * (1 << 20))) << plan.text();
  }
  std::unique_ptr<Generator> generator(int64_t context) const {
    return make_cuda_generator(model_, {0}, Numerics::kBf16, context, kSequences);
  }
  Device device() const { return {true, {0}, Numerics::kBf16}; }

  static constexpr uint64_t kMuch = UINT64_MAX;
  std::shared_ptr<const Weights> model_;
  std::shared_ptr<const Network> network_;
  TokenSequences tokens_;
  SilentProgress progress_;
};

TEST_P(CudaMemoryUse, OfScoring) {
  const int64_t windows = cuda_windows_per_batch(0, kLength);
  std::vector<ScoreWindow> all;
  for (int64_t w = 0; w < 2 * windows; ++w) {
    const auto first = static_cast<size_t>(w * 8 % (kLength * (kSequences - 2)));
    const std::span<const Token> window = std::span<const Token>(tokens_.tokens).subspan(first, kLength);
    all.push_back({window, window.last(64)});
  }
  std::vector<float> nll(all.size() * 64);
  for (Numerics numerics : {Numerics::kFp32, Numerics::kBf16, Numerics::kSf16, Numerics::kNvfp4}) {
    SCOPED_TRACE(numerics_name(numerics));
    expect_use(plan_scoring(network_, numerics, kLength, windows, kMuch),
               [&] { make_cuda_scorer(model_, {0}, numerics, kLength)->score(all, nll); });
  }
}

TEST_P(CudaMemoryUse, OfGeneration) {
  expect_use(plan_generation(network_, Numerics::kBf16, kLength, kSequences, kMuch), [&] {
    const TextScript script = uniform_script(network_->vocabulary(), {kSequences, kLength, 0.8, 3});
    generator(kLength)->calibration(script, 0, kSequences, progress_);
  });
  constexpr int64_t kContext = 2 * kLength;
  const std::span<const Token> prompt = std::span<const Token>(tokens_.tokens).first(kLength);
  expect_use(plan_text(network_, Numerics::kBf16, kContext, kLength, kMuch), [&] {
    generator(kContext)->text(prompt, {4, 0.8, 3}, [](Token) { return true; });
  });
}

TEST_P(CudaMemoryUse, OfStatistics) {
  const int64_t part = kSequences / 8, windows = std::min(part, cuda_windows_per_batch(0, kLength));
  expect_use(plan_hessians(network_, Numerics::kBf16, kLength, network_->linear_inputs(), windows, live_sums(8), kMuch),
             [&] { collect_hessians_cuda(model_, device(), tokens_, network_->linear_inputs(), progress_); });
  expect_use(plan_gradients(network_, Numerics::kBf16, kLength, part, kMuch),
             [&] { collect_loss_statistics_cuda(model_, device(), tokens_, progress_); });
}

TEST_P(CudaMemoryUse, OfTwoModelsInputs) {
  const std::vector<LinearInput> inputs = inputs_of_layers(*network_);
  const std::vector<Share> parts = parts_of_reader(kSequences, 0, 1);
  const int64_t windows = std::min(kSequences, cuda_windows_per_batch(0, kLength));
  const MemoryPlan kept = plan_input_pairs(network_, Numerics::kBf16, kLength, parts, windows, true, kMuch),
                   anew = plan_input_pairs(network_, Numerics::kBf16, kLength, parts, 4, false, kMuch);
  auto read = [&](uint64_t limit) {
    Device limited = device();
    limited.memory_limit_bytes = limit;
    const std::unique_ptr<InputPairs> pairs = make_input_pairs(model_, model_, limited, tokens_, kSequences);
    for (const LinearInput& input : inputs) pairs->collect(input);
  };
  expect_use(kept, [&] { read(kNoMemoryLimit); });
  expect_use(anew, [&] { read(anew.bytes()); });
}

TEST_P(CudaMemoryUse, OfDistillation) {
  for (const auto& [numerics, options] :
       {std::pair(Numerics::kFp32, DivergenceOptions{}),
        std::pair(Numerics::kFp32, DivergenceOptions{.summed = network_->matrix_names()}),
        std::pair(Numerics::kFp32, DivergenceOptions{.summed = {network_->matrices.back().name}}),
        std::pair(Numerics::kBf16, DivergenceOptions{.summed = network_->matrix_names(), .teacher_bytes = 1})}) {
    SCOPED_TRACE(options.summed.size());
    expect_use(plan_divergence(network_, numerics, kLength, kSequences, kMuch, options), [&] {
      const std::unique_ptr<DivergencePass> pass =
          make_cuda_divergence_pass(model_, model_, tokens_, {0}, numerics, progress_, options);
      MatrixGradients matrices;
      pass->gradients(0, kSequences, options.summed.empty() ? nullptr : &matrices);
      pass->divergence(0, kSequences);
    });
  }
}

// Counting says what an array would take, and allocates nothing.
TEST_P(CudaMemoryUse, CountingTakesNothing) {
  const uint64_t before = cuda_free_memory(0);
  const MemoryPlan plan = plan_scoring(network_, Numerics::kFp32, kLength, cuda_windows_per_batch(0, kLength), kMuch);
  EXPECT_GT(plan.bytes(), uint64_t{100} << 20);
  EXPECT_EQ(cuda_free_memory(0), before);
}

INSTANTIATE_TEST_SUITE_P(Families, CudaMemoryUse,
                         ::testing::Values(FamilyCase{"golf", golf}, FamilyCase{"gpt2", gpt2},
                                           FamilyCase{"llama", llama}, FamilyCase{"gemma", gemma}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace thimble::cuda_memory_use_test
