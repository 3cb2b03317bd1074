// cuda_input_pairs_test.cpp: inputs of two models on a CUDA device against the CPU's.
#include <gtest/gtest.h>

#include "gptq/input_pairs.h"
#include "runtime/golf_layout.h"
#include "tests/gptq/cuda_device.h"
#include "tests/runtime/random_model.h"

namespace thimble {
namespace {

class CudaInputPairs : public CudaTest {};

TEST_F(CudaInputPairs, AreTheCpus) {
  const Model original = random_golf_model(small_golf_config(), 3);
  Model changed = original;
  for (float& weight : changed.layers[0].up.values()) weight *= 1.25F;
  const TokenSequences tokens{7, 33, random_tokens(7 * 33, original.config.vocab_size, 6)};
  const LayerNames second(1);
  for (const std::vector<std::string>& layers :
       {std::vector{second.query, second.key, second.value}, {second.output}, {second.up}, {second.down}}) {
    SCOPED_TRACE(layers[0]);
    const InputPair cpu = collect_input_pair(original, changed, Device{}, tokens, 5, layers);
    for (auto [numerics, tolerance] : {std::pair(Numerics::kFp32, 1e-5), std::pair(Numerics::kBf16, 3e-2)}) {
      const InputPair cuda = collect_input_pair(original, changed, {true, {0}, numerics}, tokens, 5, layers);
      ASSERT_EQ(cuda.hessian.size(), cpu.hessian.size());
      const double scale = cpu.hessian.mean_diagonal();
      for (int64_t i = 0; i < cpu.hessian.size(); ++i)
        for (int64_t j = 0; j < cpu.hessian.size(); ++j) {
          ASSERT_NEAR(cuda.hessian(i, j), cpu.hessian(i, j), tolerance * scale) << i << " " << j;
          ASSERT_NEAR(cuda.drift(i, j), cpu.drift(i, j), tolerance * scale) << i << " " << j;
        }
    }
  }
}

}  // namespace
}  // namespace thimble
