// cuda_input_pairs_test.cpp: inputs of two models on a CUDA device against the CPU's; the same bits whatever memory
// there is.
#include <gtest/gtest.h>

#include <algorithm>

#include "gptq/factor/input_pairs.h"
#include "runtime/base/memory_plan.h"
#include "runtime/cuda/kernels/cuda_devices.h"
#include "runtime/families/golf/golf_layout.h"
#include "tests/runtime/cuda/kernels/cuda_device.h"
#include "tests/runtime/families/golf/random_model.h"

namespace thimble {
namespace {

constexpr int64_t kSequences = 5, kLength = 33;

// An input, by those who read it, and their places in a Model.
struct Stage {
  std::vector<std::string> layers;
  std::vector<Matrix LayerWeights::*> matrices;
};

std::vector<Stage> stages_of(int64_t layer) {
  const LayerNames names(layer);
  return {{{names.query, names.key, names.value}, {&LayerWeights::query, &LayerWeights::key, &LayerWeights::value}},
          {{names.output}, {&LayerWeights::output}},
          {{names.up}, {&LayerWeights::up}},
          {{names.down}, {&LayerWeights::down}}};
}

class CudaInputPairs : public CudaTest {
 protected:
  // Every input of the model, each matrix changed once its input is read.
  std::vector<InputPair> read_all(const Device& device) const {
    const std::unique_ptr<InputPairs> pairs = make_input_pairs(original_, original_, device, tokens_, kSequences);
    std::vector<InputPair> read;
    for (int64_t i = 0; i < original_.config.num_layers; ++i)
      for (const Stage& stage : stages_of(i)) {
        read.push_back(pairs->collect(stage.layers));
        for (size_t m = 0; m < stage.layers.size(); ++m) {
          Matrix changed = original_.layers[static_cast<size_t>(i)].*stage.matrices[m];
          for (float& weight : changed.values()) weight *= 1.125F;
          pairs->replace(stage.layers[m], changed);
        }
      }
    return read;
  }

  Model original_ = random_golf_model(small_golf_config(), 3);
  TokenSequences tokens_{7, kLength, random_tokens(7 * kLength, original_.config.vocab_size, 6)};
};

TEST_F(CudaInputPairs, AreTheCpus) {
  const std::vector<InputPair> cpu = read_all(Device{});
  for (auto [numerics, tolerance] : {std::pair(Numerics::kFp32, 1e-5), std::pair(Numerics::kBf16, 3e-2)}) {
    const std::vector<InputPair> cuda = read_all({true, {0}, numerics});
    ASSERT_EQ(cuda.size(), cpu.size());
    for (size_t input = 0; input < cpu.size(); ++input) {
      SCOPED_TRACE(input);
      const InputPair &a = cuda[input], &b = cpu[input];
      ASSERT_EQ(a.hessian.size(), b.hessian.size());
      double scale = 0;
      for (int64_t i = 0; i < b.hessian.size(); ++i) scale = std::max(scale, b.hessian(i, i));
      for (int64_t i = 0; i < b.hessian.size(); ++i)
        for (int64_t j = 0; j < b.hessian.size(); ++j) {
          ASSERT_NEAR(a.hessian(i, j), b.hessian(i, j), tolerance * scale) << i << " " << j;
          ASSERT_NEAR(a.drift(i, j), b.drift(i, j), tolerance * scale) << i << " " << j;
        }
    }
  }
}

TEST_F(CudaInputPairs, AreTheSameBitsInAnyMemory) {
  const std::vector<InputPair> expected = read_all({true, {0}, Numerics::kBf16});
  const auto bytes = [&](int64_t most, bool keeps) {
    return plan_input_pairs(original_.config, Numerics::kBf16, kLength, kSequences, most, keeps, UINT64_MAX).bytes();
  };
  // All activations kept, in batches of 2; passes that begin anew, of 2 sequences and of 1.
  for (const uint64_t limit : {2 * bytes(2, true), bytes(2, false), bytes(1, false)}) {
    SCOPED_TRACE(limit);
    const std::vector<InputPair> read = read_all({true, {0}, Numerics::kBf16, limit});
    for (size_t input = 0; input < expected.size(); ++input) {
      EXPECT_EQ(read[input].hessian, expected[input].hessian) << input;
      EXPECT_TRUE(std::ranges::equal(read[input].drift.values(), expected[input].drift.values())) << input;
    }
  }
}

TEST_F(CudaInputPairs, TakeTheMemoryThatWasPlanned) {
  ModelConfig config = small_golf_config();
  config.model_dim = 512;
  config.num_heads = 8;
  config.num_kv_heads = 4;
  const Model model = random_golf_model(config, 3);
  constexpr int64_t kMany = 64, kLong = 512;
  const TokenSequences tokens{kMany, kLong, random_tokens(kMany * kLong, config.vocab_size, 6)};
  const LayerNames first(0);
  const auto used = [&] {
    const uint64_t before = cuda_free_memory(0);
    const std::unique_ptr<InputPairs> pairs =
        make_input_pairs(model, model, {true, {0}, Numerics::kBf16}, tokens, kMany);
    pairs->collect({&first.up, 1});
    pairs->collect({&first.down, 1});
    return before - cuda_free_memory(0);
  };
  used();  // loads what every first use of a kernel loads
  const uint64_t planned =
      plan_input_pairs(config, Numerics::kBf16, kLong, kMany, kMany, /*keeps=*/true, UINT64_MAX).bytes();
  constexpr uint64_t kSlack = uint64_t{16} << 20;  // the driver's own
  const uint64_t taken = used();
  EXPECT_LE(taken, planned + kSlack);
  EXPECT_GE(static_cast<double>(taken), 0.7 * static_cast<double>(planned) - kSlack);
}

}  // namespace
}  // namespace thimble
