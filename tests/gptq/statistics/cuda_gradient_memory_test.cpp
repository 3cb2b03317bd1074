// cuda_gradient_memory_test.cpp: what collecting loss statistics takes of a device is what was planned. Of a test
// program of its own run, since other tests may not use the device meanwhile.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <iostream>
#include <thread>

#include "gptq/statistics/statistics_sum.h"
#include "runtime/cuda/cuda_memory.h"
#include "tests/runtime/cuda/kernels/cuda_device.h"
#include "tests/runtime/families/golf/random_model.h"

namespace thimble {
namespace {

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

using CudaMemoryOfGradients = CudaTest;

TEST_F(CudaMemoryOfGradients, IsWhatWasPlanned) {
  GolfConfig config = small_golf_config();
  config.model_dim = 512;
  config.num_heads = 8;
  config.num_kv_heads = 4;
  config.vocab_size = 1024;
  config.rope_dims = 16;
  const std::shared_ptr<const Weights> model = random_golf_weights(config, 3);
  constexpr int64_t kSequences = 32, kLength = 512;
  TokenSequences sequences{kSequences, kLength, random_tokens(kSequences * kLength, config.vocab_size, 4)};
  SilentProgress progress;
  collect_loss_statistics_cuda(model, {true, {0}}, {1, kLength, sequences.tokens}, progress);  // loads the kernels
  uint64_t before = cuda_free_memory(0);
  LeastFree watch;
  collect_loss_statistics_cuda(model, {true, {0}}, sequences, progress);
  uint64_t used = before - watch.stop(),
           planned = plan_gradients(*model->network, kLength, kSequences / 8, UINT64_MAX).bytes();
  std::cout << "used " << used << " B, planned " << planned << " B\n";
  constexpr uint64_t kSlack = uint64_t{16} << 20;  // the driver's own
  EXPECT_LE(used, planned + kSlack);
  EXPECT_GE(static_cast<double>(used), 0.8 * static_cast<double>(planned) - kSlack);
}

}  // namespace
}  // namespace thimble
