// golf_network_test.cpp: the weights that a golf-gpt's network reads, its rotary base, and that every option matters.
#include "runtime/families/golf/golf_family.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "runtime/cpu/cpu_cache.h"
#include "tests/runtime/families/golf/golf_cases.h"

namespace thimble::golf_network_test {
namespace {

std::vector<float> values_of(const OwnedTensors& tensors, const std::string& name) {
  return to_float32(tensors.at(name).view());
}

void expect_matrix(const Weights& weights, const OwnedTensors& tensors, const std::string& name) {
  const Matrix found = weights.matrix(weights.network->id_of(name)).widened();
  EXPECT_EQ((Shape{found.rows(), found.cols()}), tensors.at(name).shape) << name;
  EXPECT_TRUE(std::ranges::equal(found.values(), values_of(tensors, name))) << name;
}

// The vectors that nodes of type Op read in a layer, `member` of each.
template <typename Op>
std::vector<std::vector<float>> vectors_of(const Weights& weights, int32_t layer, VectorId Op::*member) {
  std::vector<std::vector<float>> found;
  for (const Node& node : weights.network->nodes)
    if (const auto* operation = std::get_if<Op>(&node.operation); operation && node.layer == layer)
      found.push_back(operation->*member == kAbsent ? std::vector<float>() : weights.vector(operation->*member));
  return found;
}

using Vectors = std::vector<std::vector<float>>;

TEST(GolfNetwork, BindsEveryTensor) {
  GolfConfig config = small_golf_config();
  config.tie_embeddings = false;
  const OwnedTensors tensors = random_golf_tensors(config);
  const auto weights = golf_weights(config, tensors);
  EXPECT_EQ(weights->network->layers, 5);
  for (const Parameter& parameter : weights->network->parameters) {
    EXPECT_EQ(parameter.shape, tensors.at(parameter.name).shape);
    EXPECT_EQ(parameter.role == Role::kSmall, !is_golf_matrix(parameter.name)) << parameter.name;
    if (parameter.role == Role::kSmall) {
      EXPECT_EQ(weights->small.at(parameter.name), values_of(tensors, parameter.name));
    } else {
      expect_matrix(*weights, tensors, parameter.name);
    }
  }
  EXPECT_EQ(weights->network->parameters.size(), tensors.size());
  EXPECT_EQ(weights->network->matrix(weights->network->head.weight).name, "lm_head.weight");
  for (int32_t i = 0; i < 5; ++i) {
    const LayerNames names(i);
    const std::vector<float> mix = values_of(tensors, names.resid_mix);
    const auto half = mix.begin() + config.model_dim;
    EXPECT_EQ(vectors_of(*weights, i, &op::Mix::first), (Vectors{{mix.begin(), half}}));
    EXPECT_EQ(vectors_of(*weights, i, &op::Mix::second), (Vectors{{half, mix.end()}}));
    const Vectors gains = vectors_of(*weights, i, &op::Heads::head_gain);
    ASSERT_EQ(gains.size(), 2u);
    EXPECT_EQ(gains[0], values_of(tensors, names.q_gain));
    EXPECT_TRUE(gains[1].empty());
    Vectors scales = vectors_of(*weights, i, &op::Add::scale);
    ASSERT_GE(scales.size(), 2u);
    EXPECT_EQ(scales[scales.size() - 2], values_of(tensors, names.attn_scale));
    EXPECT_EQ(scales.back(), values_of(tensors, names.mlp_scale));
  }
}

TEST(GolfNetwork, SkipsGoToTheDecoderLayersInOrder) {
  const OwnedTensors tensors = random_golf_tensors(small_golf_config());
  const auto weights = golf_weights(small_golf_config(), tensors);
  const std::vector<float> stored = values_of(tensors, "skip_weights"), gates = values_of(tensors, "skip_gates");
  for (int32_t layer : {0, 1, 4}) EXPECT_TRUE(vectors_of(*weights, layer, &op::Skip::weight).empty());
  for (int32_t j : {0, 1}) {
    const Vectors weight = vectors_of(*weights, 2 + j, &op::Skip::weight);
    const Vectors gate = vectors_of(*weights, 2 + j, &op::Skip::gate);
    ASSERT_EQ(weight.size(), 1u);
    for (size_t i = 0; i < 24; ++i) {
      const size_t at = static_cast<size_t>(j) * 24 + i;
      EXPECT_EQ(weight[0][i], stored[at]);
      EXPECT_NEAR(gate[0][i], 1 / (1 + std::exp(-double{gates[at]})), 0x1p-22);
    }
  }
}

TEST(GolfNetwork, SigmoidOfGatesSurvivesLargeValues) {
  const GolfConfig config = small_golf_config();
  OwnedTensors tensors = random_golf_tensors(config);
  std::vector<float> gate(24, 0.0f);
  gate[1] = 200;
  gate[2] = -200;
  tensors["smear.gate"].bytes = from_float32(DType::kF32, gate);
  const Vectors found = vectors_of(*golf_weights(config, tensors), kAbsent, &op::Smear::gate);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0][0], 0.5f);
  EXPECT_EQ(found[0][1], 1.0f);
  EXPECT_EQ(found[0][2], 0.0f);
}

TEST(GolfNetwork, ValueEmbeddingScalesFollowTheListOfLayers) {
  GolfConfig config = small_golf_config();
  config.ve_layers = {4, 1};
  const OwnedTensors tensors = random_golf_tensors(config);
  const auto weights = golf_weights(config, tensors);
  const float shared = values_of(tensors, "ve_shared.scale")[0];
  for (int32_t layer = 0; layer < 5; ++layer) {
    const Vectors scales = vectors_of(*weights, layer, &op::Add::scale);
    const bool has_value_embedding = layer == 4 || layer == 1;
    ASSERT_EQ(scales.size(), has_value_embedding ? 3u : 2u);
    if (!has_value_embedding) continue;
    const float own = values_of(tensors, layer == 4 ? "ve_layer_scales.0" : "ve_layer_scales.1")[0];
    EXPECT_EQ(scales[0], (std::vector<float>{shared * own}));
  }
}

TEST(GolfNetwork, ATiedHeadIsTheTokenEmbedding) {
  const Network network = golf_network(small_golf_config());
  EXPECT_EQ(network.head.weight, network.id_of("tok_emb.weight"));
  EXPECT_EQ(network.head.softcap, 30);
}

TEST(GolfNetwork, LinearMatricesAreThoseBelowTheHead) {
  const Network network = golf_network(small_golf_config());
  std::vector<std::string> expected = {kBigramProjection, kValueProjection};
  for (int64_t i = 0; i < 5; ++i) {
    const LayerNames names(i);
    expected.insert(expected.end(), {names.query, names.key, names.value, names.output, names.up, names.down});
  }
  std::vector<std::string> found;
  for (MatrixId id : network.linear_matrices()) found.push_back(network.matrix(id).name);
  EXPECT_EQ(found, expected);
}

TEST(GolfNetwork, CachesHoldKeysAndValuesOfAllLayers) {
  EXPECT_EQ(CpuCache::bytes_per_sequence(golf_network(small_golf_config()), 100, DType::kF32),
            2u * 5 * 100 * 12 * sizeof(float));
}

TEST(GolfNetwork, TheBaseGrowsWithLongContexts) {
  GolfConfig config = small_golf_config();
  config.rope_dims = 16;
  config.rope_train_seq_len = 1024;
  EXPECT_EQ(config.rope_base_at(1), 10000);
  EXPECT_EQ(config.rope_base_at(1024), 10000);
  EXPECT_NEAR(config.rope_base_at(2048), 22081.79, 0.01);
}

// inverse_frequency(k) = base^(-2k / dims), of the base at this context.
TEST(GolfNetwork, AnglesFollowTheBase) {
  GolfConfig config = small_golf_config();
  const Network network = golf_network(config);
  ASSERT_EQ(network.rotaries.size(), 1u);
  EXPECT_EQ(network.rotaries[0].dims, 4);
  const std::vector<double> trained = network.rotaries[0].frequencies(64);
  ASSERT_EQ(trained.size(), 2u);
  EXPECT_EQ(trained[0], 1);
  EXPECT_NEAR(trained[1], 0.01, 1e-15);
  EXPECT_NEAR(network.rotaries[0].frequencies(128)[1], std::pow(config.rope_base_at(128), -0.5), 1e-15);
  EXPECT_LT(network.rotaries[0].frequencies(128)[1], 0.9 * trained[1]);
  EXPECT_EQ(home_context(network, 128), config.rope_train_seq_len);
  EXPECT_EQ(home_context(network, 40), 40);
  const Network turned = network_at(network, 128);
  EXPECT_EQ(turned.rotaries[0].frequencies(40), network.rotaries[0].frequencies(128));
  EXPECT_EQ(home_context(turned, 128), 128);
}

// The comparisons with the naive pass can fail: with these weights every option that shapes do not prove moves the
// logits by far more than the tolerance.
TEST(GolfNetwork, AllOptionsMatterToTheLogits) {
  const GolfConfig config = small_golf_config();
  const OwnedTensors tensors = random_golf_tensors(config, 3);
  const std::vector<Token> tokens = random_tokens(23, config.vocab_size, 4);
  const NaiveRows expected = naive_golf_forward(config, views_of(tensors), tokens, 23).logits;
  const std::pair<const char*, std::function<void(GolfConfig&)>> changes[] = {
      {"xsa_last_n", [](GolfConfig& c) { c.xsa_last_n = 1; }},
      {"ln_scale", [](GolfConfig& c) { c.ln_scale = false; }},
      {"rope_base", [](GolfConfig& c) { c.rope_base = 5000; }},
      {"rope_dims", [](GolfConfig& c) { c.rope_dims = 6; }},
      {"rope_train_seq_len", [](GolfConfig& c) { c.rope_train_seq_len = 16; }},
      {"logit_softcap", [](GolfConfig& c) { c.logit_softcap = 25; }},
      {"ve_layers",
       [](GolfConfig& c) {
         c.ve_layers = {4, 1};
       }},
      {"smear_gate", [](GolfConfig& c) { c.smear_gate = false; }},
      {"skip_gates", [](GolfConfig& c) { c.skip_gates = false; }},
  };
  for (const auto& [name, change] : changes) {
    GolfConfig other = config;
    change(other);
    const NaiveRows found = naive_golf_forward(other, views_of(tensors), tokens, 23).logits;
    EXPECT_GT(largest_difference(found, expected), 10 * tolerance(config, 23, largest_value(expected))) << name;
  }
}

}  // namespace
}  // namespace thimble::golf_network_test
