// cuda_finite_test.cpp: a device finds the same first NaN or infinity as the CPU does.
#include <gtest/gtest.h>

#include "runtime/cpu/backend_language_model.h"
#include "runtime/cuda/cuda_language_model.h"
#include "tests/runtime/cuda/kernels/cuda_device.h"
#include "tests/runtime/families/golf/random_model.h"

namespace thimble {
namespace {

using CudaFinite = CudaTest;

TEST_F(CudaFinite, FindsWhatTheCpuFinds) {
  ModelConfig config = small_golf_config();
  std::vector<uint16_t> tokens = random_tokens(12, config.vocab_size);
  for (Numerics numerics : {Numerics::kFp32, Numerics::kBf16}) {
    Model model = random_golf_model(config);
    EXPECT_FALSE(make_cuda_language_model(model, 0, numerics, 16)->find_non_finite_input(tokens));
    for (float& weight : model.layers[2].up.values()) weight *= 1e25f;
    auto expected = make_cpu_language_model(model, 16)->find_non_finite_input(tokens);
    auto found = make_cuda_language_model(model, 0, numerics, 16)->find_non_finite_input(tokens);
    ASSERT_TRUE(expected);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->tensor, expected->tensor);
    EXPECT_EQ(found->index[0], expected->index[0]);
    if (numerics == Numerics::kFp32) {
      EXPECT_EQ(found->index, expected->index);
      EXPECT_EQ(found->value, expected->value);
    }
  }
}

}  // namespace
}  // namespace thimble
