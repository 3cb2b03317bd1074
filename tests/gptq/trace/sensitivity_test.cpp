// sensitivity_test.cpp: the sensitivities of layers against their definition.
#include "gptq/trace/plan.h"

#include <gtest/gtest.h>

#include <array>

#include "tests/gptq/statistics/gptq_samples.h"

namespace thimble::sensitivity_test {
namespace {

TEST(Sensitivity, IsTheTraceOfTheDampedHessianPerSequence) {
  HessianCollector collector;
  collector.on_linear_input(std::array{std::string("layer")}, random_matrix(20, 7, 1));
  collector.on_linear_input(std::array{std::string("layer")}, random_matrix(30, 7, 2));
  HessianSet hessians = std::move(collector).finish();
  SymmetricMatrix damped = damped_hessian_per_sequence(*hessians["layer"]);
  // 50 tokens in 2 sequences: 25 times the mean, plus a hundredth of the mean diagonal on the diagonal.
  const SymmetricMatrix& mean = hessians["layer"]->matrix;
  EXPECT_NEAR(damped(3, 1), 25 * mean(3, 1), 1e-9);
  EXPECT_NEAR(damped(3, 3), 25 * mean(3, 3) + 0.01 * 25 * mean.trace() / 7, 1e-9);
  EXPECT_NEAR(trace_sensitivities(store_in_memory(hessians)).at("layer"), damped.trace(), 1e-9);
}

}  // namespace
}  // namespace thimble::sensitivity_test
