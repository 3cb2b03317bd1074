// moe_reference_test.cpp: the pipeline keeps to the reference at every stage; every injected fault is found at its
// stage and first there; the reference agrees with a layer written out by hand; NaN is found.
#include "eval/numerics/moe_reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace thimble::moe_reference_test {
namespace {

class MoeReference : public ::testing::Test {
 protected:
  const MoeLayer layer_ = random_moe_layer(64, 48, 6, 2, 1);
  const Matrix x_ = random_normal_matrix(40, 64, 2, 99);
  std::vector<MoeStageErrors> compare(std::optional<MoeStage> fault = std::nullopt) const {
    return compare_moe(layer_, x_, run_moe(layer_, x_, multiply_nvfp4, fault));
  }
};

TEST_F(MoeReference, ThePipelineKeepsToItsBoundsAtEveryStage) {
  const std::vector<MoeStageErrors> stages = compare();
  ASSERT_EQ(stages.size(), kMoeStages.size());
  for (size_t i = 0; i < stages.size(); ++i) {
    EXPECT_EQ(static_cast<size_t>(stages[i].stage), i);
    EXPECT_TRUE(stages[i].passed()) << kMoeStages[i] << ": " << stages[i].worst_share;
    EXPECT_GT(stages[i].elements, 0);
  }
  EXPECT_EQ(first_failure(stages), nullptr);
  EXPECT_GT(stages.back().drift, 0.01) << "FP4 activations cost something";
  EXPECT_LT(stages.back().drift, 0.25);
  EXPECT_LT(stages.front().drift, 1e-6);
}

TEST_F(MoeReference, ManySeedsAndOddShapesPass) {
  for (uint64_t seed = 2; seed < 12; ++seed) {
    const MoeLayer layer = random_moe_layer(33, 17, 5, 3, seed);
    const Matrix x = random_normal_matrix(9, 33, std::pow(10.0, static_cast<double>(seed) - 6), seed + 50);
    for (const MoeStageErrors& stage : compare_moe(layer, x, run_moe(layer, x, multiply_nvfp4)))
      EXPECT_TRUE(stage.passed()) << seed << ' ' << moe_stage_name(stage.stage) << ' ' << stage.worst_share;
  }
}

TEST_F(MoeReference, EveryFaultIsFoundFirstAtItsStage) {
  for (size_t i = 0; i < kMoeStages.size(); ++i) {
    const std::vector<MoeStageErrors> stages = compare(static_cast<MoeStage>(i));
    const MoeStageErrors* failed = first_failure(stages);
    ASSERT_NE(failed, nullptr) << kMoeStages[i];
    EXPECT_EQ(moe_stage_name(failed->stage), kMoeStages[i]);
    EXPECT_GE(failed->first_row, 0);
    EXPECT_NE(failed->first_found, failed->first_reference);
    // What comes after is consistent with it: the error is not reported again, but for codes of a wrong scale.
    for (size_t later = i + 1; later < stages.size(); ++later)
      EXPECT_TRUE(stages[later].passed() || (later == i + 1 && kMoeStages[i].ends_with("scales")))
          << kMoeStages[i] << ' ' << kMoeStages[later];
  }
}

TEST_F(MoeReference, NanIsFound) {
  MoeTrace trace = run_moe(layer_, x_, multiply_nvfp4);
  trace.l2(3, 5) = std::numeric_limits<float>::quiet_NaN();
  const std::vector<MoeStageErrors> stages = compare_moe(layer_, x_, trace);
  const MoeStageErrors* failed = first_failure(stages);
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(failed->stage, MoeStage::kL2);
  EXPECT_EQ(failed->first_row, 3);
  EXPECT_EQ(failed->first_column, 5);
  EXPECT_TRUE(std::isinf(failed->worst_share));
}

// A scale taken from the wrong place, as a mistaken layout does.
TEST_F(MoeReference, SwappedWeightScalesAreFoundAtTheirProduct) {
  auto swapped = [](const Nvfp4Codes& a, int64_t m, const Nvfp4Codes& b, int64_t n, int64_t k) {
    Nvfp4Codes wrong = b;
    std::swap(wrong.block_scales[0], wrong.block_scales[1]);
    return multiply_nvfp4(a, m, wrong, n, k);
  };
  const std::vector<MoeStageErrors> stages = compare_moe(layer_, x_, run_moe(layer_, x_, swapped));
  ASSERT_NE(first_failure(stages), nullptr);
  EXPECT_EQ(first_failure(stages)->stage, MoeStage::kL1);
}

// One token, one expert chosen of two, width 2: every number by hand.
TEST(MoeReferenceByHand, ASmallLayer) {
  MoeLayer layer{2, 1, 2, 1, Matrix(2, 2), {}, {}};
  layer.router(1, 0) = 1;  // expert 1 has logit x0
  Matrix up(2, 2), down(2, 1);
  up(0, 0) = 3;      // gate = 3 x0
  up(1, 1) = 0.75f;  // up = 3/4 x1
  down(0, 0) = 6;
  down(1, 0) = -3;
  for (int e = 0; e < 2; ++e) {
    layer.up.push_back(stage_nvfp4(up));
    layer.down.push_back(stage_nvfp4(down));
  }
  Matrix x(1, 2);
  x(0, 0) = 1;
  x(0, 1) = 2;
  const MoeTrace trace = run_moe(layer, x, multiply_nvfp4);
  ASSERT_EQ(trace.routes.size(), 1u);
  EXPECT_EQ(trace.routes[0].expert, 1);
  EXPECT_EQ(trace.routing(0, 1), 1);
  const double hidden = 3 / (1 + std::exp(-3.0)) * 1.5;
  EXPECT_NEAR(trace.output(0, 0), 6 * hidden, 1e-5) << "every value is on the grid";
  EXPECT_NEAR(trace.output(0, 1), -3 * hidden, 1e-5);
  EXPECT_LT(compare_moe(layer, x, trace).back().drift, 1e-6) << "and the reference says the same";
}

}  // namespace
}  // namespace thimble::moe_reference_test
