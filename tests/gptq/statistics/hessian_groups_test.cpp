// hessian_groups_test.cpp: groups cover all inputs in order, and none takes more than there is unless it is one input.
#include "gptq/statistics/hessian_groups.h"

#include <gtest/gtest.h>

#include "gptq/statistics/stored_statistics.h"
#include "tests/runtime/families/golf/random_model.h"

namespace thimble::hessian_groups_test {
namespace {

std::vector<ValueId> values_of(const std::vector<LinearInput>& inputs) {
  std::vector<ValueId> values;
  for (const LinearInput& input : inputs) values.push_back(input.value);
  return values;
}

TEST(HessianGroups, CoverAllInputsInOrder) {
  const std::shared_ptr<const Weights> weights = random_golf_weights(small_golf_config(), 1);
  const Network& network = *weights->network;
  const std::vector<LinearInput> inputs = network.linear_inputs();
  const uint64_t all = collecting_bytes(network, inputs);
  size_t before = 1;
  for (uint64_t usable : {all, all - 1, all / 2, all / 5, uint64_t{0}}) {
    const HessianGroups plan = group_hessians(network, /*other_bytes=*/1000, usable + 1000);
    std::vector<LinearInput> found;
    for (const auto& group : plan.groups) {
      ASSERT_FALSE(group.empty());
      EXPECT_TRUE(group.size() == 1 || collecting_bytes(network, group) <= usable);
      found.insert(found.end(), group.begin(), group.end());
    }
    EXPECT_EQ(values_of(found), values_of(inputs));
    EXPECT_EQ(plan.groups.size() == 1, usable == all) << usable;
    EXPECT_GE(plan.groups.size(), before) << "less memory, more passes";
    before = plan.groups.size();
  }
  EXPECT_EQ(before, inputs.size());
}

TEST(HessianGroups, KeepWithinTheSecondBoundToo) {
  const std::shared_ptr<const Weights> weights = random_golf_weights(small_golf_config(), 1);
  const Network& network = *weights->network;
  const std::vector<LinearInput> inputs = network.linear_inputs();
  const HessianGroups pairs =
      group_hessians(network, 0, kNoMemoryLimit, 2, [](auto together) { return together.size() <= 2; });
  EXPECT_EQ(pairs.groups.size(), (inputs.size() + 1) / 2);
  EXPECT_EQ(values_of(pairs.groups[0]), values_of({inputs[0], inputs[1]}));
  // What not even one alone fits is a group all the same.
  EXPECT_EQ(group_hessians(network, 0, kNoMemoryLimit, 2, [](auto) { return false; }).groups.size(), inputs.size());
}

TEST(HessianGroups, EverySumTakesTheSame) {
  const std::shared_ptr<const Weights> weights = random_golf_weights(small_golf_config(), 1);
  const Network& network = *weights->network;
  const std::vector<LinearInput> inputs = network.linear_inputs();
  const uint64_t two = collecting_bytes(network, inputs, 2), three = collecting_bytes(network, inputs, 3);
  EXPECT_GT(three, two);
  EXPECT_EQ(collecting_bytes(network, inputs, 9) - two, 7 * (three - two));
}

TEST(HessianGroups, LargeSetsGoToFiles) {
  const std::shared_ptr<const Weights> weights = random_golf_weights(small_golf_config(), 1);
  const Network& network = *weights->network;
  uint64_t floats = 0;
  for (const LinearInput& input : network.linear_inputs()) {
    const auto columns = static_cast<uint64_t>(network.width_of(input.value));
    floats += columns * (columns + 1) * 2;
  }
  EXPECT_TRUE(group_hessians(network, 0, 8 * floats).fit_in_memory);
  EXPECT_FALSE(group_hessians(network, 0, 8 * floats - 8).fit_in_memory);
  EXPECT_TRUE(group_hessians(network, 0, kNoMemoryLimit).fit_in_memory);
}

TEST(HessianGroups, ThePlanSaysWhatIsTaken) {
  const std::shared_ptr<const Weights> weights = random_golf_weights(small_golf_config(), 1);
  const Network& network = *weights->network;
  const MemoryPlan plan = plan_host_statistics(network, 33, /*with_loss=*/false, 1000, kNoMemoryLimit);
  ASSERT_EQ(plan.uses.size(), 3U);
  EXPECT_EQ(plan.uses[0].bytes, 1000U);
  EXPECT_EQ(plan.uses[2].what, "Hessians in 1 pass");
  EXPECT_EQ(plan.uses[2].bytes, collecting_bytes(network, network.linear_inputs()));
  EXPECT_EQ(plan.uses[0].bytes + plan.uses[1].bytes, host_pass_bytes(network, 33, false, 1000));
  EXPECT_TRUE(plan.is_host);
  const MemoryPlan with_loss = plan_host_statistics(network, 33, /*with_loss=*/true, 1000, kNoMemoryLimit);
  EXPECT_GT(with_loss.uses[1].bytes, plan.uses[1].bytes);
  EXPECT_GT(with_loss.uses[2].bytes, plan.uses[2].bytes);
  EXPECT_LT(plan_host_statistics(network, 33, false, 1000, 0).uses[2].bytes, plan.uses[2].bytes);
}

TEST(HessianGroups, OnlyThoseInMemoryWaitThere) {
  const std::shared_ptr<const Weights> weights = random_golf_weights(small_golf_config(), 1);
  const Network& network = *weights->network;
  uint64_t floats = 0;
  for (const LinearInput& input : network.linear_inputs())
    floats += StoredHessian::float_bytes(network.width_of(input.value));
  EXPECT_EQ(waiting_bytes(network, group_hessians(network, 0, kNoMemoryLimit)), floats);
  EXPECT_EQ(waiting_bytes(network, group_hessians(network, 0, floats)), 0U);
}

}  // namespace
}  // namespace thimble::hessian_groups_test
