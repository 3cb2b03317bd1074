// network_test.cpp: what Ops writes down, and what a network says of itself.
#include "runtime/ops/network.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/ops/ops.h"
#include "tests/runtime/ops/sample_networks.h"

namespace thimble::network_test {
namespace {

// Two linear layers share an input, one matrix is used twice, and the head is tied.
Network small_network() {
  Ops ops({{"table", {9, 4}, Role::kTable},
           {"a", {4, 4}, Role::kLinear},
           {"b", {6, 4}, Role::kLinear},
           {"c", {4, 6}, Role::kLinear},
           {"scales", {2, 4}},
           {"unused", {3}}});
  Value x = ops.gather("table");
  ops.begin_layer(0);
  const Value first = ops.linear(x, "b");
  const Value second = ops.linear(x, "a");
  x = ops.add(second, ops.linear(first, "c"), Sum::kMlp, ops.vector(ops.row("scales", 1)));
  ops.begin_layer(1);
  x = ops.add(x, ops.linear(x, "a"), Sum::kMlp, ops.vector(ops.row("scales", 1)));
  return std::move(ops).head(x, "table", 30);
}

std::vector<std::string> names_of(const Network& network, const std::vector<MatrixId>& ids) {
  std::vector<std::string> names;
  for (MatrixId id : ids) names.push_back(network.matrix(id).name);
  return names;
}

TEST(Network, KnowsItsShape) {
  const Network network = small_network();
  EXPECT_EQ(home_context(network, 7), 7);
  EXPECT_EQ(network.layers, 2);
  EXPECT_EQ(network.vocabulary(), 9);
  EXPECT_EQ(network.head.softcap, 30);
  EXPECT_EQ(network.head.weight, network.id_of("table"));
  EXPECT_EQ(network.head.hidden, network.nodes.back().output);
  EXPECT_EQ(network.nodes.size(), 7u);
  EXPECT_EQ(network.nodes.front().layer, -1);
  EXPECT_EQ(network.nodes[1].layer, 0);
  EXPECT_EQ(network.nodes.back().layer, 1);
  EXPECT_EQ(network.width_of(network.nodes[1].output), 6);
  EXPECT_TRUE(network.is_small("scales"));
  EXPECT_FALSE(network.is_small("table"));
  EXPECT_FALSE(network.is_small("nothing"));
  for (size_t i = 0; i < network.nodes.size(); ++i) EXPECT_EQ(network.maker_of(network.nodes[i].output), i);
}

TEST(Network, MatricesAndVectorsAreListedOnce) {
  const Network network = small_network();
  ASSERT_EQ(network.matrices.size(), 4u);
  EXPECT_EQ(network.matrix(network.id_of("b")).rows, 6);
  EXPECT_EQ(network.matrix(network.id_of("b")).columns, 4);
  ASSERT_EQ(network.vectors.size(), 1u);
  EXPECT_EQ(network.vector(0), (VectorRule{.parameter = "scales", .first = 4, .count = 4}));
}

TEST(Network, LinearInputsAreInTheOrderOfTheirFirstReaders) {
  const Network network = small_network();
  const std::vector<LinearInput> inputs = network.linear_inputs();
  ASSERT_EQ(inputs.size(), 3u);
  EXPECT_EQ(names_of(network, inputs[0].readers), (std::vector<std::string>{"b", "a"}));
  EXPECT_EQ(inputs[0].value, network.nodes[0].output);
  EXPECT_EQ(inputs[0].first_reader, 1u);
  EXPECT_EQ(names_of(network, inputs[1].readers), (std::vector<std::string>{"c"}));
  EXPECT_EQ(inputs[1].value, network.nodes[1].output);
  EXPECT_EQ(names_of(network, inputs[2].readers), (std::vector<std::string>{"a"}));
  EXPECT_EQ(inputs[2].first_reader, 5u);
}

TEST(Network, LinearMatricesAreThoseBelowTheHeadEachOnce) {
  const Network network = small_network();
  EXPECT_EQ(names_of(network, network.linear_matrices()), (std::vector<std::string>{"b", "a", "c"}));
}

TEST(Ops, WidthsFollowTheOperations) {
  Ops ops({{"table", {9, 12}, Role::kTable}, {"head", {5, 4}, Role::kHead}, {"gate", {4}}});
  const Value x = ops.gather("table");
  const Value k = ops.columns(x, 4, 4), v = ops.columns(x, 8, 4);
  const Value y = ops.attention(ops.columns(x, 0, 8), k, v, {.heads = 2, .kv_heads = 1, .head_dim = 4});
  const Value last = ops.smear(ops.columns(y, 2, 4), ops.vector("gate"));
  const Network network = std::move(ops).head(last, "head");
  EXPECT_EQ(network.value_widths, (std::vector<int64_t>{12, 4, 4, 8, 8, 4, 4}));
  EXPECT_EQ(network.cache_widths, (std::vector<int64_t>{4}));
  EXPECT_EQ(network.state_widths, (std::vector<int64_t>{4}));
  EXPECT_EQ(network.vocabulary(), 5);
  EXPECT_EQ(network.layers, 0);
  EXPECT_EQ(network.head.softcap, 0);
  const auto& attention = std::get<op::Attention>(network.nodes[4].operation);
  EXPECT_EQ(attention.scale, 0.5f);  // 1 / sqrt(4)
  EXPECT_EQ(attention.cache, 0);
  EXPECT_EQ(std::get<op::Smear>(network.nodes[6].operation).state, 0);
}

TEST(Ops, EachAttentionAndSmearHasAMemoryOfItsOwn) {
  const Network network = network_of_every_operation();
  EXPECT_EQ(network.cache_widths, (std::vector<int64_t>{6}));
  Ops ops({{"table", {9, 4}, Role::kTable}, {"gate", {4}}});
  Value x = ops.gather("table");
  for (int i = 0; i < 3; ++i) {
    x = ops.smear(x, ops.vector("gate"));
    x = ops.attention(x, x, x, {.heads = 1, .kv_heads = 1, .head_dim = 4});
  }
  const Network several = std::move(ops).head(x, "table");
  EXPECT_EQ(several.cache_widths.size(), 3u);
  EXPECT_EQ(several.state_widths.size(), 3u);
  for (int32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(std::get<op::Smear>(several.nodes[static_cast<size_t>(1 + 2 * i)].operation).state, i);
    EXPECT_EQ(std::get<op::Attention>(several.nodes[static_cast<size_t>(2 + 2 * i)].operation).cache, i);
  }
}

struct OperationTraits {
  const char* name;
  Operation operation;
  size_t input_count;
  bool in_place;
  std::vector<size_t> earlier_rows;  // inputs of which it reads earlier rows
};

TEST(Operations, SayWhatTheyMayDo) {
  const OperationTraits traits[] = {{"gather", op::Gather{}, 0, false, {}},
                                    {"linear", op::Linear{}, 1, false, {}},
                                    {"add", op::Add{}, 2, true, {}},
                                    {"rms_norm", op::RmsNorm{}, 1, true, {}},
                                    {"layer_norm", op::LayerNorm{}, 1, true, {}},
                                    {"heads", op::Heads{}, 1, true, {}},
                                    {"attention", op::Attention{}, 3, false, {1, 2}},
                                    {"activate", op::Activate{}, 1, true, {}},
                                    {"gate", op::Gate{}, 2, true, {}},
                                    {"mix", op::Mix{}, 2, true, {}},
                                    {"skip", op::Skip{}, 2, true, {}},
                                    {"smear", op::Smear{}, 1, false, {0}},
                                    {"columns", op::Columns{}, 1, false, {}}};
  static_assert(std::size(traits) == std::variant_size_v<Operation>);
  for (const OperationTraits& t : traits) {
    SCOPED_TRACE(t.name);
    EXPECT_EQ(works_in_place(t.operation), t.in_place);
    for (size_t i = 0; i < t.input_count; ++i)
      EXPECT_EQ(reads_earlier_rows(t.operation, i), std::ranges::count(t.earlier_rows, i) > 0) << i;
  }
}

}  // namespace
}  // namespace thimble::network_test
