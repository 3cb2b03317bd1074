// gpt2_network_test.cpp: the weights that a GPT-2's network reads, and that every one of them matters.
#include "runtime/families/gpt2/gpt2_family.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/runtime/families/gpt2/naive_gpt2.h"
#include "tests/runtime/families/gpt2/random_gpt2.h"
#include "tests/runtime/ops/changed_matrix.h"

namespace thimble::gpt2_network_test {
namespace {

constexpr int64_t kWindow = 23;

TEST(Gpt2Network, BindsEveryTensor) {
  Gpt2Config config = small_gpt2_config();
  config.tie_embeddings = false;
  const OwnedTensors tensors = random_gpt2_tensors(config);
  const auto weights = gpt2_weights(config, tensors);
  const Network& network = *weights->network;
  EXPECT_EQ(network.layers, 3);
  EXPECT_EQ(network.parameters.size(), tensors.size());
  for (const Parameter& parameter : network.parameters) {
    SCOPED_TRACE(parameter.name);
    const std::vector<float> values = to_float32(tensors.at(parameter.name).view());
    EXPECT_EQ(parameter.role == Role::kSmall, !is_gpt2_matrix(parameter.name));
    EXPECT_EQ(parameter.role == Role::kLinear, is_gpt2_projection(parameter.name));
    if (parameter.role == Role::kSmall) {
      EXPECT_EQ(weights->small.at(parameter.name), values);
    } else {
      EXPECT_TRUE(std::ranges::equal(values_of(weights->matrix(network.id_of(parameter.name))), values));
    }
  }
  EXPECT_EQ(network.matrix(network.head.weight).name, kGpt2Head);
  EXPECT_EQ(network.head.softcap, 0);
  EXPECT_EQ(gpt2_network(small_gpt2_config()).head.weight,
            gpt2_network(small_gpt2_config()).id_of(kGpt2TokenEmbedding));
}

TEST(Gpt2Network, LinearMatricesAreTheProjections) {
  const Network network = gpt2_network(small_gpt2_config());
  std::vector<std::string> expected, found;
  for (int64_t i = 0; i < 3; ++i) {
    const Gpt2LayerNames names(i);
    expected.insert(expected.end(), {names.query_key_value, names.attention_output, names.up, names.down});
  }
  for (MatrixId id : network.linear_matrices()) found.push_back(network.matrix(id).name);
  EXPECT_EQ(found, expected);
}

// The comparisons above can fail: each of these moves the logits by far more than the tolerance.
TEST(Gpt2Network, AllOptionsMatterToTheLogits) {
  const Gpt2Config config = small_gpt2_config();
  const OwnedTensors tensors = random_gpt2_tensors(config, 3);
  const std::vector<Token> tokens = random_tokens(kWindow, config.vocab_size, 4);
  const NaiveRows expected = naive_gpt2_forward(config, views_of(tensors), tokens).logits;
  auto difference = [&](const Gpt2Config& other, const OwnedTensors& changed) {
    const NaiveRows found = naive_gpt2_forward(other, views_of(changed), tokens).logits;
    return largest_difference(found, expected) / largest_value(expected);
  };
  Gpt2Config heads = config, epsilon = config;
  heads.num_heads = 2;
  epsilon.norm_epsilon = 0.01;
  EXPECT_GT(difference(heads, tensors), 0x1p-10);
  EXPECT_GT(difference(epsilon, tensors), 0x1p-10);
  for (const auto& [name, tensor] : tensors) {
    OwnedTensors changed = tensors;
    std::vector<float> values = to_float32(tensor.view());
    for (float& value : values) value *= 1.25f;
    changed[name].bytes = from_float32(DType::kF32, values);
    EXPECT_GT(difference(config, changed), 0x1p-10) << name;
  }
}

}  // namespace
}  // namespace thimble::gpt2_network_test
