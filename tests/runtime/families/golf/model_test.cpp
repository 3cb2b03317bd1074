// model_test.cpp: tensors bound to the fields of Model.
#include "runtime/families/golf/model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/runtime/families/golf/random_model.h"

namespace thimble {
namespace {

std::vector<float> values_of(const OwnedTensors& tensors, const std::string& name) {
  return to_float32(tensors.at(name).view());
}

void expect_matrix(const Matrix& found, const OwnedTensors& tensors, const std::string& name) {
  EXPECT_EQ((Shape{found.rows(), found.cols()}), tensors.at(name).shape) << name;
  EXPECT_TRUE(std::ranges::equal(found.values(), values_of(tensors, name))) << name;
}

TEST(Model, BindsEveryTensorToItsField) {
  GolfConfig config = small_golf_config();
  config.tie_embeddings = false;
  OwnedTensors tensors = random_golf_tensors(config);
  Model model = bind_model(config, views_of(tensors));
  expect_matrix(model.token_embedding, tensors, "tok_emb.weight");
  expect_matrix(model.head(), tensors, "lm_head.weight");
  expect_matrix(model.bigram_embedding, tensors, "bigram.embed.weight");
  expect_matrix(model.bigram_projection, tensors, "bigram.proj.weight");
  expect_matrix(model.value_embedding, tensors, "ve_shared.embed.weight");
  expect_matrix(model.value_projection, tensors, "ve_shared.proj.weight");
  EXPECT_EQ(model.bigram_scale, values_of(tensors, "bigram.scale")[0]);
  ASSERT_EQ(model.layers.size(), 5u);
  for (int64_t i = 0; i < 5; ++i) {
    const LayerWeights& layer = model.layers[static_cast<size_t>(i)];
    LayerNames names(i);
    expect_matrix(layer.query, tensors, names.query);
    expect_matrix(layer.key, tensors, names.key);
    expect_matrix(layer.value, tensors, names.value);
    expect_matrix(layer.output, tensors, names.output);
    expect_matrix(layer.up, tensors, names.up);
    expect_matrix(layer.down, tensors, names.down);
    EXPECT_EQ(layer.q_gain, values_of(tensors, names.q_gain));
    EXPECT_EQ(layer.attn_scale, values_of(tensors, names.attn_scale));
    EXPECT_EQ(layer.mlp_scale, values_of(tensors, names.mlp_scale));
    std::vector<float> mix = layer.mix_x;
    mix.insert(mix.end(), layer.mix_x0.begin(), layer.mix_x0.end());
    EXPECT_EQ(mix, values_of(tensors, names.resid_mix));
  }
}

TEST(Model, SkipsGoToTheDecoderLayersInOrder) {
  OwnedTensors tensors = random_golf_tensors(small_golf_config());
  Model model = bind_model(small_golf_config(), views_of(tensors));
  std::vector<float> weights = values_of(tensors, "skip_weights"), gates = values_of(tensors, "skip_gates");
  for (size_t layer : {0u, 1u, 4u}) {
    EXPECT_TRUE(model.layers[layer].skip_weight.empty());
    EXPECT_TRUE(model.layers[layer].skip_gate.empty());
  }
  for (size_t j : {0u, 1u}) {
    const LayerWeights& layer = model.layers[2 + j];
    for (size_t i = 0; i < 24; ++i) {
      EXPECT_EQ(layer.skip_weight[i], weights[j * 24 + i]);
      EXPECT_NEAR(layer.skip_gate[i], 1 / (1 + std::exp(-double{gates[j * 24 + i]})), 0x1p-22);
    }
  }
}

TEST(Model, SigmoidOfGatesSurvivesLargeValues) {
  GolfConfig config = small_golf_config();
  OwnedTensors tensors = random_golf_tensors(config);
  std::vector<float> gate(24, 0.0f);
  gate[1] = 200;
  gate[2] = -200;
  tensors["smear.gate"].bytes = from_float32(DType::kF32, gate);
  Model model = bind_model(config, views_of(tensors));
  EXPECT_EQ(model.smear_gate[0], 0.5f);
  EXPECT_EQ(model.smear_gate[1], 1.0f);
  EXPECT_EQ(model.smear_gate[2], 0.0f);
}

TEST(Model, ValueEmbeddingScalesFollowTheListOfLayers) {
  GolfConfig config = small_golf_config();
  config.ve_layers = {4, 1};
  OwnedTensors tensors = random_golf_tensors(config);
  Model model = bind_model(config, views_of(tensors));
  float shared = values_of(tensors, "ve_shared.scale")[0];
  EXPECT_EQ(model.layers[4].value_embedding_scale, shared * values_of(tensors, "ve_layer_scales.0")[0]);
  EXPECT_EQ(model.layers[1].value_embedding_scale, shared * values_of(tensors, "ve_layer_scales.1")[0]);
  for (size_t layer : {0u, 2u, 3u}) EXPECT_EQ(model.layers[layer].value_embedding_scale, 0);
}

TEST(Model, ATiedHeadIsTheTokenEmbedding) {
  Model model = random_golf_model(small_golf_config());
  EXPECT_EQ(&model.head(), &model.token_embedding);
}

TEST(Model, FloatTensorsBindLikeViews) {
  GolfConfig config = small_golf_config();
  OwnedTensors tensors = random_golf_tensors(config);
  FloatTensors floats;
  for (const auto& [name, tensor] : tensors) floats[name] = to_float32(tensor.view());
  Model given = bind_model(config, std::move(floats)), viewed = bind_model(config, views_of(tensors));
  EXPECT_TRUE(std::ranges::equal(given.layers[3].down.values(), viewed.layers[3].down.values()));
  EXPECT_EQ(given.smear_gate, viewed.smear_gate);
}

TEST(Model, CountsParameters) {
  GolfConfig config = small_golf_config();
  OwnedTensors tensors = random_golf_tensors(config);
  int64_t expected = 0;
  for (const auto& [name, tensor] : tensors) expected += element_count(tensor.shape);
  EXPECT_EQ(bind_model(config, views_of(tensors)).parameter_count(), expected);
}

}  // namespace
}  // namespace thimble
