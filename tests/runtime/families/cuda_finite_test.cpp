// cuda_finite_test.cpp: a device finds the same first NaN or infinity as the CPU does.
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/cpu/cpu_models.h"
#include "runtime/cuda/cuda_models.h"
#include "tests/runtime/cuda/kernels/cuda_device.h"
#include "tests/runtime/families/golf/random_model.h"
#include "tests/runtime/families/gpt2/random_gpt2.h"
#include "tests/runtime/ops/changed_matrix.h"

namespace thimble::cuda_finite_test {
namespace {

using CudaFinite = CudaTest;

void expect_the_cpus(const Weights& weights, const std::string& damaged, Numerics numerics) {
  SCOPED_TRACE(damaged);
  SCOPED_TRACE(numerics_name(numerics));
  const std::vector<Token> tokens = random_tokens(12, weights.network->vocabulary());
  EXPECT_FALSE(make_cuda_scorer(std::make_shared<Weights>(weights), 0, numerics, 16)->find_non_finite_input(tokens));
  auto model = std::make_shared<Weights>(weights);
  scale_matrix(*model, model->network->id_of(damaged), 1e25f);
  const auto expected = make_cpu_scorer(model, Numerics::kFp32, 16)->find_non_finite_input(tokens);
  const auto found = make_cuda_scorer(model, 0, numerics, 16)->find_non_finite_input(tokens);
  ASSERT_TRUE(expected);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->tensor, expected->tensor);
  EXPECT_EQ(found->index[0], expected->index[0]);
  if (numerics != Numerics::kFp32) return;
  EXPECT_EQ(found->index, expected->index);
  EXPECT_EQ(found->value, expected->value);
}

TEST_F(CudaFinite, FindsWhatTheCpuFinds) {
  for (Numerics numerics : {Numerics::kFp32, Numerics::kBf16})
    expect_the_cpus(*random_golf_weights(small_golf_config()), LayerNames(2).up, numerics);
}

TEST_F(CudaFinite, FindsWhatTheCpuFindsInGpt2) {
  auto model = std::make_shared<Weights>(*random_gpt2_weights(small_gpt2_config()));
  change_matrix(*model, model->network->id_of(Gpt2LayerNames(1).up), [](Matrix& matrix) { matrix(3, 2) = INFINITY; });
  const std::vector<Token> tokens = random_tokens(12, model->network->vocabulary());
  const auto expected = make_cpu_scorer(model, Numerics::kFp32, 16)->find_non_finite_input(tokens);
  const auto found = make_cuda_scorer(model, 0, Numerics::kFp32, 16)->find_non_finite_input(tokens);
  ASSERT_TRUE(expected);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->tensor, expected->tensor);
  EXPECT_EQ(found->index, expected->index);
}

}  // namespace
}  // namespace thimble::cuda_finite_test
