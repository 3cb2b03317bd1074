// pass_plan_test.cpp: plans of passes over sample networks hold what their instructions read, and no more than they
// must.
#include "runtime/ops/pass_plan.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "runtime/ops/ops.h"
#include "tests/runtime/ops/plan_check.h"
#include "tests/runtime/ops/sample_networks.h"

namespace thimble::pass_plan_test {
namespace {

// All combinations of options that have a meaning.
std::vector<PassOptions> all_options() {
  std::vector<PassOptions> all = {{}};
  for (bool outputs : {false, true})
    for (bool vectors : {false, true})
      for (bool inputs : {false, true})
        for (Keeps keeps : {Keeps::kCrossing, Keeps::kCostly, Keeps::kAll})
          all.push_back({.has_backward = true,
                         .reads_linear_outputs = outputs,
                         .has_vector_gradients = vectors,
                         .reads_linear_inputs = inputs,
                         .reads_attention_outputs = inputs != vectors,
                         .keeps = keeps});
  return all;
}

TEST(PassPlan, OfEveryOperationHoldsWhatIsRead) {
  for (const PassOptions& options : all_options()) expect_valid_plan(network_of_every_operation(), options);
}

TEST(PassPlan, OfRandomNetworksHoldsWhatIsRead) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    for (const PassOptions& options : all_options()) expect_valid_plan(random_network(seed), options);
    if (::testing::Test::HasFailure()) break;
  }
}

// A chain of operations that work in place takes one slot, two where one does not.
TEST(PassPlan, OperationsInPlaceTakeNoSlot) {
  Ops ops({{"table", {9, 4}, Role::kTable}, {"w", {4, 4}, Role::kLinear}});
  Value x = ops.rms_norm(ops.gather("table"), {.epsilon = 1});
  x = ops.activate(Activation::kSilu, x);
  const Network chain = std::move(ops).head(x, "table");
  EXPECT_EQ(plan_pass(chain).slot_widths, (std::vector<int64_t>{4}));

  Ops more({{"table", {9, 4}, Role::kTable}, {"w", {4, 4}, Role::kLinear}});
  Value y = more.gather("table");
  for (int i = 0; i < 5; ++i) y = more.linear(y, "w");
  EXPECT_EQ(plan_pass(std::move(more).head(y, "table")).slot_widths, (std::vector<int64_t>{4, 4}));
}

// What a deep network keeps is what crosses, layer after layer; the rest is one layer's.
TEST(PassPlan, LayersThatAreComputedAgainTakeMemoryOnce) {
  auto width_of = [](int64_t layers, Keeps keeps) {
    Ops ops({{"table", {9, 4}, Role::kTable}, {"up", {40, 4}, Role::kLinear}, {"down", {4, 40}, Role::kLinear}});
    Value x = ops.gather("table");
    for (int64_t layer = 0; layer < layers; ++layer) {
      ops.begin_layer(layer);
      x = ops.add(x, ops.linear(ops.activate(Activation::kSilu, ops.linear(x, "up")), "down"), Sum::kMlp);
    }
    const Network network = std::move(ops).head(x, "table");
    const PassPlan plan = plan_pass(network, {.has_backward = true, .reads_linear_inputs = true, .keeps = keeps});
    return std::accumulate(plan.slot_widths.begin(), plan.slot_widths.end(), int64_t{0});
  };
  auto width_of_layer = [&](Keeps keeps) { return width_of(9, keeps) - width_of(8, keeps); };
  EXPECT_LE(width_of_layer(Keeps::kCrossing), 8);
  EXPECT_GE(width_of_layer(Keeps::kCostly), 40);
  EXPECT_GE(width_of_layer(Keeps::kAll), 80);
  EXPECT_LT(width_of(1, Keeps::kCrossing), width_of(2, Keeps::kCostly));
}

TEST(PassPlan, WhatIsReadLaterIsNotWrittenOver) {
  Ops ops({{"table", {9, 4}, Role::kTable}});
  const Value x = ops.gather("table");
  const Value y = ops.activate(Activation::kSilu, x);
  const Network network = std::move(ops).head(ops.add(y, x, Sum::kMlp), "table");
  const PassPlan plan = plan_pass(network);
  EXPECT_NE(plan.forward[1].output.slot, plan.forward[0].output.slot);
  EXPECT_EQ(plan.forward[2].output.slot, plan.forward[1].output.slot);
}

TEST(PassPlan, AnInputReadTwiceIsNotWrittenOver) {
  Ops ops({{"table", {9, 4}, Role::kTable}});
  const Value x = ops.gather("table");
  const PassPlan plan = plan_pass(std::move(ops).head(ops.gate(Activation::kSilu, x, x), "table"));
  EXPECT_NE(plan.forward[1].output.slot, plan.forward[0].output.slot);
}

TEST(PassPlan, ViewsLieInWhatTheyAreViewsOf) {
  Ops ops({{"table", {9, 12}, Role::kTable}, {"w", {3, 4}, Role::kLinear}, {"head", {2, 3}, Role::kHead}});
  const Value view = ops.columns(ops.columns(ops.gather("table"), 2, 8), 3, 4);
  const Network network = std::move(ops).head(ops.linear(view, "w"), "head");
  const PassPlan plan = plan_pass(network);
  const Place& place = plan.forward[3].inputs[0];
  EXPECT_EQ(place.slot, plan.forward[0].output.slot);
  EXPECT_EQ(place.first_column, 5);
  EXPECT_EQ(place.width, 4);
  EXPECT_EQ(place.stride, 12);
}

// The last attention's queries, and what comes after it, are needed for the needed rows alone.
TEST(PassPlan, RowsThatOnlyTheirOwnOutputsNeedAreLeftOut) {
  Ops ops({{"table", {9, 4}, Role::kTable}, {"q", {4, 4}, Role::kLinear}, {"k", {4, 4}, Role::kLinear}});
  const Value x = ops.gather("table");
  const Value q = ops.linear(x, "q");
  const Value k = ops.linear(x, "k");
  const Value y = ops.attention(q, k, x, {.heads = 1, .kv_heads = 1, .head_dim = 4});
  const Network network = std::move(ops).head(ops.activate(Activation::kSilu, y), "table");
  const PassPlan plan = plan_pass(network);
  const bool expected[] = {false, true, false, true, true};
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(plan.forward[i].output.needed_rows_only, expected[i]) << i;
  EXPECT_TRUE(plan.hidden.needed_rows_only);
}

// What nothing depends on has no gradient.
TEST(PassPlan, OnlyWhatTheLossDependsOnIsTransposed) {
  Ops ops({{"table", {9, 4}, Role::kTable}, {"w", {4, 4}, Role::kLinear}});
  const Value x = ops.gather("table");
  ops.linear(x, "w");
  const Network network = std::move(ops).head(ops.activate(Activation::kSilu, x), "table");
  const PassPlan plan = plan_pass(network, {.has_backward = true});
  ASSERT_EQ(plan.backward.size(), 2u);
  EXPECT_EQ(plan.backward[0].node, 2u);
  EXPECT_EQ(plan.backward[1].node, 0u);
}

TEST(LiveValues, AreWhatLaterNodesReadOfEarlierOnes) {
  const Network network = network_of_every_operation();
  const PassPlan plan = plan_pass(network);
  EXPECT_TRUE(live_values(network, plan, 0).empty());
  for (size_t node = 0; node <= network.nodes.size(); ++node) {
    std::set<ValueId> expected;
    auto add = [&](ValueId value) {
      while (std::holds_alternative<op::Columns>(network.nodes[network.maker_of(value)].operation))
        value = network.nodes[network.maker_of(value)].inputs[0];
      if (network.maker_of(value) < node) expected.insert(value);
    };
    for (size_t later = node; later < network.nodes.size(); ++later)
      for (ValueId input : network.nodes[later].inputs) add(input);
    add(network.head.hidden);
    std::set<ValueId> found;
    for (const LiveValue& live : live_values(network, plan, node)) {
      EXPECT_TRUE(found.insert(live.value).second);
      EXPECT_EQ(live.place.width, network.width_of(live.value));
    }
    EXPECT_EQ(found, expected) << "before node " << node;
  }
}

}  // namespace
}  // namespace thimble::pass_plan_test
