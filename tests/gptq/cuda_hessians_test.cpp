// cuda_hessians_test.cpp: Hessians of a whole model collected on the device against the CPU's.
#include "gptq/cuda_hessians.h"

#include <gtest/gtest.h>

#include <cmath>

#include "gptq/gptq.h"
#include "runtime/backend.h"
#include "runtime/window_scores.h"
#include "tests/gptq/cuda_device.h"
#include "tests/runtime/random_model.h"

namespace thimble {
namespace {

class CudaHessians : public CudaTest {
 protected:
  static constexpr int64_t kSequences = 5, kLength = 41;

  HessianSet on_cuda(Numerics numerics) const {
    SilentProgress progress;
    return collect_hessians_cuda(model, {true, {0}, numerics}, sequences, progress);
  }
  HessianSet on_cpu() const {
    std::unique_ptr<Backend> backend = make_cpu_backend();
    WindowScorer scorer(model, *backend, kLength);
    HessianCollector collector;
    for (int64_t s = 0; s < kSequences; ++s)
      scorer.observe(sequences.sequence(s).first(static_cast<size_t>(kLength - 1)), collector);
    return std::move(collector).finish();
  }
  // The same layers, sharing alike; elements within `tolerance` of their columns' deviations.
  static void expect_near(const HessianSet& found, const HessianSet& expected, double tolerance) {
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
      for (int64_t i = 0; i < h.size(); ++i)
        for (int64_t j = 0; j <= i; ++j)
          ASSERT_NEAR(hessian.matrix(i, j), h(i, j), tolerance * std::sqrt(h(i, i) * h(j, j))) << i << ' ' << j;
    }
  }

  Model model = random_golf_model(small_golf_config(), 3);
  TokenSequences sequences{kSequences, kLength, random_tokens(kSequences* kLength, model.config.vocab_size, 4)};
};

TEST_F(CudaHessians, AreTheCpusInFloat32) { expect_near(on_cuda(Numerics::kFp32), on_cpu(), 1e-4); }

// 8 bits of significand through five layers.
TEST_F(CudaHessians, AreNearTheCpusInBf16) { expect_near(on_cuda(Numerics::kBf16), on_cpu(), 0.1); }

TEST_F(CudaHessians, AreTheSameBitsAgain) {
  HessianSet first = on_cuda(Numerics::kBf16), second = on_cuda(Numerics::kBf16);
  for (const auto& [layer, hessian] : first) EXPECT_EQ(hessian->matrix, second.at(layer)->matrix) << layer;
}

}  // namespace
}  // namespace thimble
