// gpt2_config_test.cpp: what shapes prove, what only the config can tell, and every error.
#include "runtime/families/gpt2/gpt2_config.h"

#include <gtest/gtest.h>

#include "runtime/families/gpt2/gpt2_family.h"
#include "tests/runtime/base/error_matcher.h"
#include "tests/runtime/families/gpt2/random_gpt2.h"

namespace thimble::gpt2_config_test {
namespace {

class Gpt2ConfigTest : public ::testing::Test {
 protected:
  Gpt2Config resolve() const {
    const Gpt2Config config = resolve_gpt2_config(given_, "config.json", tensors(), "m.safetensors");
    Gpt2Family().resolve(given_, tensors(), {"config.json", "m.safetensors"});  // and every tensor's check
    return config;
  }
  TensorMap tensors() const {
    TensorMap views;
    for (const auto& [name, shape] : shapes_) views[name] = {dtype_, shape, {}};
    return views;
  }
  void expect_refused(std::initializer_list<std::string> words) const {
    expect_error<FormatError>([&] { resolve(); }, words);
  }

  Gpt2Config config_ = small_gpt2_config();
  std::map<std::string, Shape> shapes_ = gpt2_tensor_shapes(config_);
  Json given_ = to_json(config_);
  DType dtype_ = DType::kBF16;
};

TEST_F(Gpt2ConfigTest, ComesBackFromItsJson) {
  for (bool tied : {true, false}) {
    config_.tie_embeddings = tied;
    shapes_ = gpt2_tensor_shapes(config_);
    given_ = to_json(config_);
    EXPECT_EQ(canonical_json(to_json(resolve())), canonical_json(given_));
  }
}

TEST_F(Gpt2ConfigTest, ShapesProveWhatTheConfigLeavesOut) {
  for (const char* key : {"vocab_size", "n_positions", "n_layer", "n_embd", "n_inner", "tie_word_embeddings"})
    given_.erase(key);
  EXPECT_EQ(canonical_json(to_json(resolve())), canonical_json(to_json(config_)));
  given_["n_inner"] = nullptr;
  expect_refused({"config.json", "'n_inner' is null", "50, as tensor 'transformer.h.0.mlp.c_fc.weight'"});
}

TEST_F(Gpt2ConfigTest, AnInnerWidthOfNullIsFourTimesTheWidth) {
  config_.mlp_dim = 4 * config_.model_dim;
  shapes_ = gpt2_tensor_shapes(config_);
  given_["n_inner"] = nullptr;
  EXPECT_EQ(resolve().mlp_dim, 80);
}

TEST_F(Gpt2ConfigTest, HuggingFacesKeyNamesTheFamilyToo) {
  given_.erase("architecture");
  expect_refused({"config key 'model_type' is missing"});
  given_["model_type"] = "gpt2";
  EXPECT_EQ(resolve().model_dim, config_.model_dim);
  given_["model_type"] = "gpt_neo";
  expect_refused({"'model_type' is \"gpt_neo\", allowed is 'gpt2'"});
}

TEST_F(Gpt2ConfigTest, WhatTensorsCannotProveMustBeThere) {
  for (const char* key : {"n_head", "layer_norm_epsilon", "activation_function"}) {
    Json before = given_;
    given_.erase(key);
    expect_refused({"config.json", std::string("config key '") + key + "' is missing"});
    given_ = before;
  }
}

TEST_F(Gpt2ConfigTest, ValuesOutOfRangeAreRefused) {
  const std::tuple<const char*, Json, const char*> cases[] = {
      {"n_head", 3, "a divisor of the model width, 20"},
      {"n_head", 0, "a divisor"},
      {"n_head", -4, "a divisor"},
      {"n_head", "4", "an integer"},
      {"layer_norm_epsilon", 0, "from 1e-30 to 1"},
      {"layer_norm_epsilon", 2, "from 1e-30 to 1"},
      {"activation_function", "relu", "'gelu_new'"},
      {"activation_function", "gelu", "'gelu_new'"},
      {"scale_attn_weights", false, "true"},
      {"scale_attn_by_inverse_layer_idx", true, "false"},
      {"add_cross_attention", true, "false"},
      {"tie_word_embeddings", 1, "true or false"},
  };
  for (const auto& [key, value, allowed] : cases) {
    Json before = given_;
    given_[key] = value;
    expect_refused({"config.json", key, value.dump(), std::string("allowed is ") + allowed});
    given_ = before;
  }
}

TEST_F(Gpt2ConfigTest, ContradictionsAreRefused) {
  for (const char* key : {"vocab_size", "n_positions", "n_layer", "n_embd", "n_inner"}) {
    Json before = given_;
    given_[key] = 7;
    expect_refused({"config.json", std::string("'") + key + "' is 7, but tensor '"});
    given_ = before;
  }
  given_["tie_word_embeddings"] = false;
  expect_refused({"'tie_word_embeddings' is false, but tensor 'lm_head.weight' proves true"});
}

TEST_F(Gpt2ConfigTest, EveryTensorIsChecked) {
  for (const auto& [name, shape] : gpt2_tensor_shapes(config_)) {
    std::map<std::string, Shape> before = shapes_;
    shapes_[name].back() += 1;
    expect_error<FormatError>([&] { resolve(); }, {"tensor '"});
    shapes_.erase(name);
    expect_error<FormatError>([&] { resolve(); }, {"tensor '"});
    shapes_ = before;
  }
  shapes_["transformer.h.0.extra"] = {3};
  expect_refused({"m.safetensors", "'transformer.h.0.extra'", "not part of a gpt2 model"});
  shapes_.erase("transformer.h.0.extra");
  dtype_ = DType::kI32;
  expect_refused({"dtype I32, expected a floating-point dtype"});
}

TEST_F(Gpt2ConfigTest, SizesAreBounded) {
  shapes_["transformer.wte.weight"] = {1048577, 20};
  given_["vocab_size"] = 1048577;
  expect_refused({"a vocabulary of 1048577 tokens, at most 1048576"});
  shapes_["transformer.wte.weight"] = {29, 0};
  expect_refused({"dimensions must be 1 to"});
  shapes_["transformer.wte.weight"] = {29};
  expect_refused({"expected 2 dimensions"});
}

TEST(Gpt2Names, SayWhichTensorsAreMatrices) {
  const Gpt2LayerNames names(12);
  EXPECT_EQ(names.query_key_value, "transformer.h.12.attn.c_attn.weight");
  EXPECT_EQ(bias_name(names.down), "transformer.h.12.mlp.c_proj.bias");
  for (const std::string& name : {names.query_key_value, names.attention_output, names.up, names.down})
    EXPECT_TRUE(is_gpt2_projection(name) && is_gpt2_matrix(name)) << name;
  for (const char* name : {kGpt2TokenEmbedding, kGpt2PositionEmbedding, kGpt2Head})
    EXPECT_TRUE(is_gpt2_matrix(name) && !is_gpt2_projection(name)) << name;
  for (const std::string& name : {names.attention_norm, names.mlp_norm, bias_name(names.up)})
    EXPECT_FALSE(is_gpt2_matrix(name)) << name;
}

}  // namespace
}  // namespace thimble::gpt2_config_test
