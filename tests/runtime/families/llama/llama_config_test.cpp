// llama_config_test.cpp: what shapes prove, what only the config can tell, both spellings of rotary options, windows,
// and every error, of Llama and its relatives.
#include "runtime/families/llama/llama_config.h"

#include <gtest/gtest.h>

#include "tests/runtime/base/error_matcher.h"
#include "tests/runtime/families/llama/llama_cases.h"

namespace thimble::llama_config_test {
namespace {

class LlamaConfigTest : public ::testing::Test {
 protected:
  void use(const LlamaConfig& config) {
    config_ = config;
    shapes_ = llama_tensor_shapes(config);
    given_ = to_json(config);
  }
  void use(std::string_view model_type) { use(small_llama_config(model_type)); }

  TensorMap tensors() const {
    TensorMap views;
    for (const auto& [name, shape] : shapes_) views[name] = {DType::kBF16, shape, {}};
    return views;
  }
  LlamaConfig resolve() const {
    LlamaFamily(config_.variant->model_type).resolve(given_, tensors(), {"config.json", "m.safetensors"});
    return resolve_llama_config(*config_.variant, given_, "config.json", tensors(), "m.safetensors");
  }
  std::string resolved() const { return canonical_json(to_json(resolve())); }
  void expect_refused(std::initializer_list<std::string> words) const {
    expect_error<FormatError>([&] { resolve(); }, words);
  }
  void expect_refused(const char* key, const Json& value, const std::string& allowed) {
    const Json before = given_;
    given_[key] = value;
    expect_refused({"config.json", key, allowed});
    given_ = before;
  }

  LlamaConfig config_;
  std::map<std::string, Shape> shapes_;
  Json given_;
};

TEST_F(LlamaConfigTest, WhatIsWrittenForOthersIsReadAgain) {
  for (const LlamaCase& llama : kLlamaCases) {
    SCOPED_TRACE(llama.name);
    use(config_of(llama));
    const Json own = given_;
    given_ = hub_config(config_);
    EXPECT_EQ(given_.at("architectures").size(), 1U);
    EXPECT_EQ(resolved(), canonical_json(own));
    // The older spelling alone says the same, but for a Gemma's scaled local layers, which it cannot.
    given_.erase("rope_parameters");
    EXPECT_EQ(resolve().rope, config_.rope);
  }
}

TEST_F(LlamaConfigTest, EveryCaseComesBackFromItsJson) {
  for (const LlamaCase& llama : kLlamaCases) {
    SCOPED_TRACE(llama.name);
    use(config_of(llama));
    EXPECT_EQ(resolved(), canonical_json(given_));
    const LlamaConfig found = resolve();
    EXPECT_EQ(found.is_local, config_.is_local);
    EXPECT_EQ(found.window, config_.window);
    EXPECT_EQ(found.query_scalar, config_.query_scalar);
    EXPECT_EQ(found.rope.frequencies(8), config_.rope.frequencies(8));
    EXPECT_EQ(found.local_rope.theta, config_.local_rope.theta);
  }
}

TEST_F(LlamaConfigTest, ShapesProveWhatTheConfigLeavesOut) {
  use("llama");
  for (const char* key : {"vocab_size", "num_hidden_layers", "num_key_value_heads", "head_dim", "hidden_size",
                          "intermediate_size", "tie_word_embeddings", "attention_bias", "mlp_bias", "hidden_act"})
    given_.erase(key);
  EXPECT_EQ(resolved(), canonical_json(to_json(config_)));
  given_["head_dim"] = nullptr;
  EXPECT_EQ(resolve().head_dim, 6);
}

TEST_F(LlamaConfigTest, ContradictionsAreRefused) {
  use("llama");
  for (const char* key :
       {"vocab_size", "num_hidden_layers", "num_key_value_heads", "head_dim", "hidden_size", "intermediate_size"})
    expect_refused(key, 7, "' is 7, but tensor '");
  expect_refused("tie_word_embeddings", false, "tensor 'lm_head.weight' proves true");
  expect_refused("attention_bias", true, "tensor 'model.layers.0.self_attn.q_proj.bias' proves false");
}

TEST_F(LlamaConfigTest, WhatTensorsCannotProveMustBeThere) {
  use("gemma3_text");
  for (const char* key : {"num_attention_heads", "rms_norm_eps", "query_pre_attn_scalar", "sliding_window"}) {
    const Json before = given_;
    given_.erase(key);
    expect_refused({"config.json", std::string("config key '") + key + "' is missing"});
    given_ = before;
  }
}

TEST_F(LlamaConfigTest, VariantsThatAreNotKnownAreRefused) {
  use("llama");
  const std::tuple<const char*, Json, const char*> cases[] = {
      {"hidden_act", "gelu", "'silu'"},
      {"num_attention_heads", 5, "24 rows"},
      {"num_attention_heads", 0, "24 rows"},
      {"rms_norm_eps", 0, "from 1e-30 to 1"},
      {"attn_logit_softcapping", 50.0, "null"},
      {"final_logit_softcapping", 30.0, "null"},
      {"num_local_experts", 8, "null"},
      {"num_experts", 8, "null"},
      {"vision_config", Json::object(), "null"},
      {"quantization_config", {{"quant_method", "gptq"}}, "{\"quant_method\":\"gptq\"}, allowed is null"},
      {"use_bidirectional_attention", true, "false"},
      {"partial_rotary_factor", 0.5, "0.5, allowed is 1"},
      {"rope_parameters",
       {{"rope_type", "yarn"}, {"factor", 4}},
       "'rope_parameters.rope_type' is \"yarn\", allowed is 'default', 'linear' and 'llama3'"},
      {"rope_parameters", {{"type", "dynamic"}, {"factor", 4}}, "'rope_parameters.type' is \"dynamic\""},
      {"rope_parameters", {{"rope_type", "linear"}}, "'rope_parameters.factor' is missing"},
      {"rope_parameters",
       {{"rope_type", "linear"}, {"factor", 0}},
       "'rope_parameters.factor' is 0, allowed is above 0"},
      {"rope_parameters", {{"rope_theta", -1}}, "'rope_parameters.rope_theta' is -1"},
      {"rope_parameters", {{"rope_theta", 1e4}, {"partial_rotary_factor", 0.5}}, "0.5, allowed is 1"},
      {"rope_parameters", 5, "'rope_parameters' is 5, allowed is an object"},
      {"rope_parameters",
       {{"rope_type", "llama3"},
        {"factor", 8},
        {"low_freq_factor", 4},
        {"high_freq_factor", 4},
        {"original_max_position_embeddings", 8192}},
       "'rope_parameters.high_freq_factor' is 4, allowed is above"},
      {"rope_scaling", {{"type", "linear"}, {"factor", 2}}, "null beside 'rope_parameters'"},
      {"layer_types", {"sliding_attention", "full_attention", "full_attention"}, "'full_attention' alone"},
      {"layer_types", {"full_attention"}, "an array of 3 strings"},
      {"layer_types", {"full_attention", "chunked_attention", "full_attention"}, "for each layer"},
  };
  for (const auto& [key, value, allowed] : cases) {
    SCOPED_TRACE(std::string(key) + " " + value.dump());
    expect_refused(key, value, allowed);
  }
  use("gemma3_text");
  expect_refused("hidden_activation", "gelu", "'gelu_pytorch_tanh'");
}

TEST_F(LlamaConfigTest, BothSpellingsOfRotaryOptionsMeanTheSame) {
  use("llama");
  const Json scaling = {{"rope_type", "llama3"},
                        {"factor", 32.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 8192}};
  Json parameters = scaling;
  parameters["rope_theta"] = 500000.0;
  given_["rope_parameters"] = parameters;
  const std::string expected = resolved();
  given_.erase("rope_parameters");
  given_["rope_theta"] = 500000.0;
  given_["rope_scaling"] = scaling;
  EXPECT_EQ(resolved(), expected);
  given_["rope_scaling"] = nullptr;
  EXPECT_EQ(resolve().rope.type, "default");
  EXPECT_EQ(resolve().rope.theta, 500000);
  given_.erase("rope_theta");
  EXPECT_EQ(resolve().rope.theta, 10000);
}

TEST_F(LlamaConfigTest, GemmasRotaryOptionsOfBothSpellings) {
  use("gemma3_text");
  given_["rope_parameters"] = {
      {"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 1000000.0}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 20000.0}}}};
  const std::string expected = resolved();
  given_.erase("rope_parameters");
  given_["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  given_["rope_local_base_freq"] = 20000;
  EXPECT_EQ(resolved(), expected);
  EXPECT_EQ(resolve().rope.theta, 1e6);
  given_.erase("rope_scaling");
  expect_refused("rope_parameters", {{"rope_type", "linear"}, {"factor", 8.0}},
                 "'full_attention' and 'sliding_attention'");
}

// As for transformers, the length of the training is that before the stretching where nothing else is said.
TEST_F(LlamaConfigTest, StretchedWavesStartFromThePositionsOfTheConfig) {
  use("llama");
  given_["rope_parameters"] = {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 1}, {"high_freq_factor", 4}};
  expect_refused({"'rope_parameters.original_max_position_embeddings' is missing"});
  given_["max_position_embeddings"] = 60;
  EXPECT_EQ(resolve().rope.original_positions, 60);
  given_["rope_parameters"]["original_max_position_embeddings"] = 30;
  EXPECT_EQ(resolve().rope.original_positions, 30);
}

TEST_F(LlamaConfigTest, WindowsOfEachFamily) {
  use("mistral");
  expect_refused("layer_types", {"sliding_attention", "full_attention", "sliding_attention"},
                 "'sliding_attention' alone");
  given_.erase("layer_types");
  EXPECT_EQ(resolve().is_local, (std::vector<bool>{true, true, true}));
  EXPECT_EQ(resolve().window, 5);
  expect_refused("sliding_window", 0, "1 to 16777216");
  given_["sliding_window"] = nullptr;
  EXPECT_EQ(resolve().window, 0);
  EXPECT_EQ(resolved(), canonical_json(to_json(resolve())));
  given_.erase("sliding_window");
  expect_refused({"config key 'sliding_window' is missing"});

  use("qwen2");
  given_["sliding_window"] = 7;
  given_["max_window_layers"] = 2;
  EXPECT_EQ(resolve().window, 0);
  given_["use_sliding_window"] = true;
  EXPECT_EQ(resolve().is_local, (std::vector<bool>{false, false, true}));
  EXPECT_EQ(resolve().window, 7);

  use("gemma3_text");
  given_.erase("layer_types");
  EXPECT_EQ(resolve().is_local, (std::vector<bool>{true, true, true}));  // every sixth is global
  given_["sliding_window_pattern"] = 2;
  EXPECT_EQ(resolve().is_local, (std::vector<bool>{true, false, true}));
}

TEST_F(LlamaConfigTest, EveryTensorIsChecked) {
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3", "gemma3_text"}) {
    use(type);
    const std::map<std::string, Shape> all = shapes_;
    for (const auto& [name, shape] : all) {
      SCOPED_TRACE(name);
      shapes_ = all;
      shapes_[name].back() += 1;
      expect_refused({"tensor '"});
      shapes_.erase(name);
      expect_refused({"tensor '"});
    }
    shapes_ = all;
    shapes_["model.layers.0.extra"] = {3};
    expect_refused({"'model.layers.0.extra'", std::string("not part of a ") + type + " model"});
  }
}

// Of Llama 3.2: waves shorter than 8192 / 4 positions stay, those longer than 8192 are 32 times as long.
TEST(LlamaRope, StretchesLongWaves) {
  const LlamaRope plain{.theta = 500000};
  const LlamaRope stretched{.theta = 500000,
                            .type = "llama3",
                            .factor = 32,
                            .low_frequency = 1,
                            .high_frequency = 4,
                            .original_positions = 8192};
  const std::vector<double> before = plain.frequencies(64), after = stretched.frequencies(64);
  EXPECT_EQ(before[0], 1);
  EXPECT_NEAR(before[31], 3.01e-6, 1e-8);
  for (size_t k = 0; k < 32; ++k) {
    const double length = 2 * 3.14159265358979 / before[k];
    if (length < 2048) {
      EXPECT_EQ(after[k], before[k]) << k;
    } else if (length > 8192) {
      EXPECT_DOUBLE_EQ(after[k], before[k] / 32) << k;
    } else {
      EXPECT_LT(after[k], before[k]);
      EXPECT_GT(after[k], before[k] / 32);
    }
  }
}

}  // namespace
}  // namespace thimble::llama_config_test
