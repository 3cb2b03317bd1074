// weights_test.cpp: parameters bound to a network, vectors made of small tensors, and gradients back to these.
#include "runtime/ops/weights.h"

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/ops/ops.h"
#include "tests/runtime/ops/naive_network.h"
#include "tests/runtime/ops/sample_networks.h"

namespace thimble::weights_test {
namespace {

// A network whose vectors have every kind of rule. What the operations are does not matter.
std::shared_ptr<const Network> network_of_rules() {
  Ops ops({{"table", {5, 3}, Role::kTable},
           {"w", {3, 3}, Role::kLinear},
           {"rows", {2, 3}},
           {"gate", {3}},
           {"common", {}},
           {"own", {1}},
           {"unused", {2, 2}}});
  const Vector row0 = ops.vector(ops.row("rows", 0)), row1 = ops.vector(ops.row("rows", 1));
  const Vector gate = ops.vector("gate");
  const Vector sigmoid = ops.vector(VectorRule{.parameter = "gate", .count = 3, .sigmoid = true});
  const Vector product = ops.vector(VectorRule{.parameter = "own", .count = 1, .times = "common"});
  const Vector sum = ops.vector(VectorRule{.parameter = "gate", .count = 3, .plus = 1});
  const Vector all = ops.vector(
      VectorRule{.parameter = "rows", .first = 1, .count = 3, .sigmoid = true, .times = "common", .plus = -0.5f});
  const Value x = ops.gather("table");
  Value y = ops.mix(x, row0, ops.linear(x, "w"), row1);
  y = ops.skip(y, x, gate, sigmoid);
  y = ops.add(y, x, Sum::kMlp, product);
  y = ops.rms_norm(y, {.epsilon = 1e-5f, .gain = sum});
  y = ops.skip(y, x, all);
  return std::make_shared<const Network>(std::move(ops).head(y, "table"));
}

FloatTensors tensors_of_rules() {
  return {{"table", std::vector<float>(15, 2)},
          {"w", {1, 2, 3, 4, 5, 6, 7, 8, 9}},
          {"rows", {1, -2, 3, 4, 5, -0.5f}},
          {"gate", {0, 200, -200}},
          {"common", {3}},
          {"own", {0.5f}},
          {"unused", {1, 2, 3, 4}}};
}

TEST(Weights, BindsMatricesAndKeepsTheRestAsStored) {
  const Weights weights = bind_weights(network_of_rules(), tensors_of_rules());
  ASSERT_EQ(weights.matrices.size(), 2u);
  const Matrix w = weights.matrix(weights.network->id_of("w")).widened();
  EXPECT_EQ(w.rows(), 3);
  EXPECT_EQ(w.cols(), 3);
  EXPECT_EQ(w(1, 2), 6);
  FloatTensors expected = tensors_of_rules();
  expected.erase("w");
  expected.erase("table");
  EXPECT_EQ(weights.small, expected);
}

TEST(Weights, VectorsFollowTheirRules) {
  const Weights weights = bind_weights(network_of_rules(), tensors_of_rules());
  ASSERT_EQ(weights.vectors.size(), 7u);
  EXPECT_EQ(weights.vector(0), (std::vector<float>{1, -2, 3}));
  EXPECT_EQ(weights.vector(1), (std::vector<float>{4, 5, -0.5f}));
  EXPECT_EQ(weights.vector(2), (std::vector<float>{0, 200, -200}));
  EXPECT_EQ(weights.vector(3), (std::vector<float>{0.5f, 1, 0}));  // sigmoids of large values neither overflow nor NaN
  EXPECT_EQ(weights.vector(4), (std::vector<float>{1.5f}));
  EXPECT_EQ(weights.vector(5), (std::vector<float>{1, 201, -199}));
  const double stored[] = {-2, 3, 4};
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(weights.vector(6)[i], 3 / (1 + std::exp(-stored[i])) - 0.5, 0x1p-21);
}

TEST(Weights, SetSmallMakesAllVectorsAgain) {
  Weights weights = bind_weights(network_of_rules(), tensors_of_rules());
  FloatTensors moved = weights.small;
  moved["common"] = {-1};
  moved["rows"][0] = 9;
  weights.set_small(moved);
  EXPECT_EQ(weights.vectors.size(), 7u);
  EXPECT_EQ(weights.vector(0)[0], 9);
  EXPECT_EQ(weights.vector(4), (std::vector<float>{-0.5f}));
  EXPECT_EQ(weights.small, moved);
}

// The loss is a weighting of all vectors' elements.
class StoredGradients : public ::testing::TestWithParam<bool> {
 protected:
  std::shared_ptr<const Network> network() const {
    return GetParam() ? std::make_shared<const Network>(network_of_every_operation()) : network_of_rules();
  }
};
INSTANTIATE_TEST_SUITE_P(Networks, StoredGradients, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "EveryOperation" : "EveryRule"; });

TEST_P(StoredGradients, MatchDifferences) {
  const auto weights = random_weights(*network(), 3);
  const Network& network = *weights->network;
  std::vector<std::vector<double>> by_vectors;
  auto weight = [](size_t v, size_t i) { return std::sin(static_cast<double>(7 * v + 3 * i + 1)); };
  for (size_t v = 0; v < network.vectors.size(); ++v) {
    by_vectors.emplace_back();
    if (v == 0) continue;  // of this one nobody asks
    for (int64_t i = 0; i < network.vectors[v].count; ++i) by_vectors[v].push_back(weight(v, static_cast<size_t>(i)));
  }
  NaiveTensors tensors = naive_tensors(*weights);
  auto loss = [&] {
    double sum = 0;
    for (size_t v = 1; v < network.vectors.size(); ++v) {
      const std::vector<double> values = naive_vector(network.vectors[v], tensors);
      for (size_t i = 0; i < values.size(); ++i) sum += weight(v, i) * values[i];
    }
    return sum;
  };
  const NamedGradients found = stored_gradients(network, weights->small, by_vectors);
  for (const Parameter& parameter : network.parameters) {
    EXPECT_EQ(found.contains(parameter.name), parameter.role == Role::kSmall) << parameter.name;
    if (parameter.role != Role::kSmall) continue;
    const std::vector<double>& gradient = found.at(parameter.name);
    ASSERT_EQ(static_cast<int64_t>(gradient.size()), element_count(parameter.shape)) << parameter.name;
    for (size_t i = 0; i < gradient.size(); ++i) {
      double& element = tensors.at(parameter.name)[i];
      const double before = element;
      element = before + 1e-5;
      const double above = loss();
      element = before - 1e-5;
      const double below = loss();
      element = before;
      EXPECT_NEAR(gradient[i], (above - below) / 2e-5, 1e-8) << parameter.name << " [" << i << "]";
    }
  }
}

}  // namespace
}  // namespace thimble::weights_test
