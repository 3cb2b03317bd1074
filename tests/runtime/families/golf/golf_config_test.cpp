// golf_config_test.cpp: what a config must hold, what shapes prove, and every contradiction between the two.
#include "runtime/families/golf/golf_config.h"

#include <gtest/gtest.h>

#include <functional>

#include "runtime/families/golf/golf_family.h"
#include "tests/runtime/base/error_matcher.h"
#include "tests/runtime/families/golf/random_model.h"

namespace thimble::golf_config_test {
namespace {

// A config and the tensors that fit it, to be damaged by each test.
struct Input {
  Json json;
  OwnedTensors tensors;

  GolfConfig resolve() const {
    GolfFamily().resolve(json, views_of(tensors), {"config.json", "model.safetensors"});  // and every tensor's check
    return resolve_golf_config(json, "config.json", views_of(tensors), "model.safetensors");
  }
  void reshape(const std::string& name, const Shape& shape) {
    tensors[name] = {DType::kF32, shape, from_float32(DType::kF32, std::vector<float>(element_count(shape)))};
  }
};

Input input_of(const GolfConfig& config) { return {to_json(config), random_golf_tensors(config)}; }
Input sample() { return input_of(small_golf_config()); }

void expect_refused(const std::function<void(Input&)>& damage, std::initializer_list<std::string> words) {
  Input input = sample();
  damage(input);
  expect_error<FormatError>([&] { input.resolve(); }, words);
}

void expect_round_trip(const GolfConfig& config) {
  Input input = input_of(config);
  EXPECT_EQ(to_json(input.resolve()), input.json);
}

TEST(GolfConfig, RoundTripsThroughJson) {
  expect_round_trip(small_golf_config());
  GolfConfig plain = small_golf_config();
  plain.num_layers = 4;
  plain.tie_embeddings = false;
  plain.smear_gate = plain.skip_gates = plain.ln_scale = false;
  plain.bigram_vocab_size = plain.bigram_dim = plain.ve_dim = plain.xsa_last_n = 0;
  plain.ve_layers = {};
  expect_round_trip(plain);
  GolfConfig unordered = small_golf_config();
  unordered.ve_layers = {4, 0, 2};
  expect_round_trip(unordered);
  GolfConfig shallow = small_golf_config();
  shallow.num_layers = 1;
  shallow.skip_gates = false;
  shallow.xsa_last_n = 1;
  shallow.ve_layers = {0};
  expect_round_trip(shallow);
}

TEST(GolfConfig, DerivedDimensions) {
  GolfConfig config = small_golf_config();
  EXPECT_EQ(config.head_dim(), 6);
  EXPECT_EQ(config.kv_dim(), 12);
  EXPECT_EQ(config.mlp_dim(), 60);
  EXPECT_EQ(config.encoder_layers(), 2);
  config.mlp_mult = 2.99;
  EXPECT_EQ(config.mlp_dim(), 71);  // 71.76, truncated
}

const char* const kProvenKeys[] = {"vocab_size",        "num_layers", "model_dim",      "num_heads",
                                   "num_kv_heads",      "mlp_mult",   "smear_gate",     "skip_gates",
                                   "bigram_vocab_size", "bigram_dim", "tie_embeddings", "ve_dim"};

TEST(GolfConfig, KeysThatShapesProveMayBeMissing) {
  Input input = sample();
  Json complete = input.json;
  for (const char* key : kProvenKeys) input.json.erase(key);
  EXPECT_EQ(to_json(input.resolve()), complete);
  // Untied: proven by the head's existence.
  input.reshape("lm_head.weight", {29, 24});
  EXPECT_FALSE(input.resolve().tie_embeddings);
}

TEST(GolfConfig, KeysThatShapesCannotProveMustBeThere) {
  for (const char* key : {"architecture", "logit_softcap", "rope_base", "rope_dims", "rope_train_seq_len", "ln_scale",
                          "xsa_last_n", "mlp_activation", "ve_layers"})
    expect_refused([&](Input& in) { in.json.erase(key); },
                   {"config.json", "config key '" + std::string(key) + "' is missing", "cannot prove"});
}

TEST(GolfConfig, UnknownKeysAreIgnored) {
  Input input = sample();
  input.json["training_steps"] = 20000;
  EXPECT_EQ(to_json(input.resolve()), sample().json);
}

TEST(GolfConfig, ContradictionsNameKeyValueAndTensor) {
  struct Contradiction {
    const char* key;
    Json value;
    const char* tensor;
    const char* proven;
  };
  const Contradiction contradictions[] = {
      {"vocab_size", 30, "tok_emb.weight", "29"},           {"model_dim", 25, "tok_emb.weight", "24"},
      {"num_layers", 6, "blocks.4.attn.c_q.weight", "5"},   {"num_heads", 2, "blocks.0.attn.q_gain", "4"},
      {"num_kv_heads", 4, "blocks.0.attn.c_k.weight", "2"}, {"mlp_mult", 3.0, "blocks.0.mlp.fc.weight", "60"},
      {"mlp_mult", -2.5, "blocks.0.mlp.fc.weight", "60"},   {"mlp_mult", 1e300, "blocks.0.mlp.fc.weight", "60"},
      {"tie_embeddings", false, "lm_head.weight", "true"},  {"smear_gate", false, "smear.gate", "true"},
      {"skip_gates", false, "skip_gates", "true"},          {"bigram_vocab_size", 0, "bigram.embed.weight", "53"},
      {"bigram_dim", 11, "bigram.embed.weight", "10"},      {"ve_dim", 8, "ve_shared.embed.weight", "7"},
  };
  for (const Contradiction& c : contradictions)
    expect_refused([&](Input& in) { in.json[c.key] = c.value; },
                   {"config.json", "'" + std::string(c.key) + "' is " + c.value.dump(), c.tensor, c.proven});
}

// The same contradictions from the other side: a tensor that the config does not expect, or one that it misses.
TEST(GolfConfig, OptionsWithoutTheirTensorsAreContradictions) {
  auto without = [](const char* prefix) {
    return
        [prefix](Input& in) { std::erase_if(in.tensors, [&](const auto& t) { return t.first.starts_with(prefix); }); };
  };
  expect_refused(without("smear.gate"), {"'smear_gate' is true", "smear.gate", "false"});
  expect_refused(without("skip_gates"), {"'skip_gates' is true", "skip_gates", "false"});
  expect_refused(without("bigram."), {"'bigram_vocab_size' is 53", "bigram.embed.weight", "0"});
  expect_refused(without("ve_"), {"'ve_layers' is [1,4]", "empty array", "ve_shared.embed.weight"});
  expect_refused([](Input& in) { in.json["tie_embeddings"] = false; }, {"'tie_embeddings' is false"});
  expect_refused([](Input& in) { in.reshape("lm_head.weight", {29, 24}); }, {"'tie_embeddings' is true", "lm_head"});
}

TEST(GolfConfig, ValuesOfTheWrongTypeAreErrors) {
  const std::tuple<const char*, Json, const char*> wrong[] = {
      {"vocab_size", "29", "an integer"},
      {"vocab_size", 29.0, "an integer"},
      {"vocab_size", 18446744073709551615u, "below 2^63"},
      {"num_layers", nullptr, "an integer"},
      {"tie_embeddings", 1, "true or false"},
      {"mlp_mult", "2.5", "a number"},
      {"logit_softcap", true, "a number"},
      {"rope_dims", 4.5, "an integer"},
      {"ln_scale", 0, "true or false"},
      {"ve_layers", 1, "an array of integers"},
      {"ve_layers", Json::array({1, "4"}), "an array of integers"},
      {"ve_layers", Json::array({1.0, 4.0}), "an array of integers"},
      {"mlp_activation", 2, "a string"},
      {"architecture", Json::object(), "a string"},
  };
  for (const auto& [key, value, allowed] : wrong)
    expect_refused([&, k = key, v = value](Input& in) { in.json[k] = v; },
                   {"config.json", "config key '" + std::string(key) + "' is " + value.dump(), allowed});
}

TEST(GolfConfig, ValuesOutOfRangeAreErrors) {
  const std::tuple<const char*, Json, const char*> wrong[] = {
      {"logit_softcap", 0, "1e-30 to 1e30"},
      {"logit_softcap", -30.0, "1e-30 to 1e30"},
      {"logit_softcap", 1e-300, "1e-30 to 1e30"},
      {"logit_softcap", 1e300, "1e-30 to 1e30"},
      {"rope_base", 1.0, "above 1"},
      {"rope_base", -10000, "above 1"},
      {"rope_dims", 0, "even number from 4 to the head width 6"},
      {"rope_dims", 2, "even number from 4"},
      {"rope_dims", 5, "even number from 4"},
      {"rope_dims", 8, "even number from 4"},
      {"rope_train_seq_len", 0, "1 to 2^24"},
      {"rope_train_seq_len", 16777217, "1 to 2^24"},
      {"xsa_last_n", -1, "0 to the number of layers, 5"},
      {"xsa_last_n", 6, "0 to the number of layers, 5"},
      {"mlp_activation", "gelu", "leaky_relu_0.5_squared"},
      {"architecture", "llama", "golf-gpt"},
  };
  for (const auto& [key, value, allowed] : wrong)
    expect_refused([&, k = key, v = value](Input& in) { in.json[k] = v; },
                   {"config.json", "config key '" + std::string(key) + "' is " + value.dump(), allowed});
}

TEST(GolfConfig, ValueEmbeddingLayersMustBeDistinctLayersWithAScaleEach) {
  auto refused = [](const Json& layers, const std::string& allowed) {
    expect_refused([&](Input& in) { in.json["ve_layers"] = layers; }, {"'ve_layers' is " + layers.dump(), allowed});
  };
  refused(Json::array(), "distinct layers from 0 to 4");
  refused({1, 1}, "distinct layers from 0 to 4");
  refused({1, 5}, "distinct layers from 0 to 4");
  refused({-1, 4}, "distinct layers from 0 to 4");
  refused({1, uint64_t{18446744073709551615u}}, "distinct layers from 0 to 4");
  refused({1}, "2 layers, one for each tensor 've_layer_scales.k'");
  refused({0, 1, 4}, "2 layers, one for each");
  expect_refused([](Input& in) { in.tensors.erase("ve_layer_scales.1"); },
                 {"'ve_layers' is [1,4]", "1 layer, one for"});
  expect_refused([](Input& in) { in.reshape("ve_layer_scales.3", {1}); }, {"'ve_layer_scales.3'", "not part of"});
}

TEST(GolfConfig, EveryMissingTensorIsNamed) {
  for (const auto& [name, tensor] : sample().tensors) {
    // These prove a key or are counted: their absence shows as a contradiction.
    if (name == "smear.gate" || name == "skip_gates" || name.ends_with(".embed.weight")) continue;
    if (name.starts_with("ve_layer_scales.") || name.ends_with("c_q.weight")) continue;
    expect_refused([&name = name](Input& in) { in.tensors.erase(name); },
                   {"model.safetensors", "'" + name + "' is missing"});
  }
  // A gap among the layers ends their count.
  expect_refused([](Input& in) { in.tensors.erase("blocks.3.attn.c_q.weight"); },
                 {"'num_layers' is 5", "'blocks.2.attn.c_q.weight' proves 3"});
  expect_refused([](Input& in) { in.tensors.erase("tok_emb.weight"); },
                 {"model.safetensors", "'tok_emb.weight' is missing"});
  expect_refused([](Input& in) { in.tensors.erase("skip_weights"); },
                 {"'skip_weights' is missing, expected shape [2, 24]"});
  expect_refused([](Input& in) { in.tensors.clear(); }, {"'tok_emb.weight' is missing"});
}

TEST(GolfConfig, ATransposedOrResizedTensorIsNamed) {
  for (const auto& [name, tensor] : sample().tensors) {
    Input input = sample();
    Shape shape = tensor.shape;
    if (shape.empty()) shape.push_back(1);
    shape.back() += 1;
    input.reshape(name, shape);
    for (const char* key : kProvenKeys) input.json.erase(key);  // so that no key is contradicted first
    EXPECT_THROW(input.resolve(), FormatError) << name;
  }
  expect_refused(
      [](Input& in) {
        in.reshape("blocks.3.mlp.proj.weight", {60, 24});
      },
      {"model.safetensors", "'blocks.3.mlp.proj.weight'", "[60, 24]", "expected [24, 60]"});
  expect_refused([](Input& in) { in.reshape("smear.gate", {1, 24}); }, {"'smear.gate'", "[1, 24]", "expected [24]"});
}

TEST(GolfConfig, ScalarsMayHaveOneElement) {
  Input input = sample();
  input.reshape("bigram.scale", {1});
  input.reshape("ve_shared.scale", {1});
  input.reshape("ve_layer_scales.0", {});
  EXPECT_NO_THROW(input.resolve());
  input.reshape("bigram.scale", {1, 1});
  expect_error<FormatError>([&] { input.resolve(); }, {"'bigram.scale'", "[1, 1]"});
}

TEST(GolfConfig, AnExtraTensorIsNamed) {
  expect_refused([](Input& in) { in.reshape("optimizer.state", {3}); },
                 {"model.safetensors", "'optimizer.state' of shape [3] is not part of"});
  expect_refused([](Input& in) { in.reshape("blocks.7.attn_scale", {24}); }, {"'blocks.7.attn_scale'"});
}

TEST(GolfConfig, WeightsMustBeFloating) {
  expect_refused(
      [](Input& in) {
        in.tensors["smear.gate"] = {DType::kI8, {24}, ByteVector(24)};
      },
      {"'smear.gate'", "dtype I8", "floating-point"});
  for (DType dtype : {DType::kF16, DType::kBF16, DType::kF64}) {
    Input input{to_json(small_golf_config()), random_golf_tensors(small_golf_config(), 1, dtype)};
    EXPECT_NO_THROW(input.resolve());
  }
}

TEST(GolfConfig, HeadsMustDivideTheWidths) {
  expect_refused(
      [](Input& in) {
        in.json.erase("num_heads");
        in.reshape("blocks.0.attn.q_gain", {5});
      },
      {"'blocks.0.attn.q_gain'", "5 heads do not divide the model width 24"});
  for (int64_t kv_dim : {1, 7, 18, 48})  // not heads of 6; 3 heads do not divide 4; more than the query heads
    expect_refused(
        [&](Input& in) {
          in.json.erase("num_kv_heads");
          in.reshape("blocks.0.attn.c_k.weight", {kv_dim, 24});
        },
        {"'blocks.0.attn.c_k.weight'", std::to_string(kv_dim) + " rows"});
}

// Shapes alone, without bytes: dimensions that no model has are refused before anything is computed from them.
TEST(GolfConfig, DimensionsAreBounded) {
  auto refused = [](const std::string& name, const Shape& shape, const std::string& words) {
    Input input = sample();
    TensorMap views = views_of(input.tensors);
    views[name] = {DType::kF32, shape, {}};
    for (const char* key : kProvenKeys) input.json.erase(key);
    expect_error<FormatError>(
        [&] {
          GolfFamily().resolve(input.json, views, {"config.json", "model.pt"});
        },
        {"model.pt", "'" + name + "'", words});
  };
  constexpr int64_t kHuge = int64_t{1} << 62;
  refused("tok_emb.weight", {kHuge, kHuge}, "1 to 16777216");
  refused("tok_emb.weight", {0, 24}, "1 to 16777216");
  refused("tok_emb.weight", {(1 << 20) + 1, 24}, "at most 1048576");
  refused("tok_emb.weight", {29}, "2 dimensions");
  refused("blocks.0.attn.q_gain", {0}, "1 to 16777216");
  refused("blocks.0.mlp.fc.weight", {kHuge, 24}, "1 to 16777216");
  refused("bigram.embed.weight", {1, 10}, "at least 2");
  refused("bigram.scale", {kHuge, kHuge}, "expected []");
  refused("smear.gate", {kHuge, kHuge, kHuge}, "expected [24]");
}

TEST(GolfConfig, TheLargestVocabularyIsABoundOfAll) {
  GolfConfig config = small_golf_config();
  config.vocab_size = kMostTokens;
  EXPECT_EQ(input_of(config).resolve().vocab_size, kMostTokens);
}

// M / D rounds: without care, 15 / 11 * 11 truncates to 14.
TEST(GolfConfig, TheMlpWidthIsInferredExactly) {
  for (int64_t heads : {1, 11, 13, 19, 49, 56}) {
    for (int64_t mlp_dim = 1; mlp_dim <= 60; ++mlp_dim) {
      GolfConfig config = small_golf_config();
      config.num_heads = config.num_kv_heads = heads;
      config.model_dim = 8 * heads;
      config.num_layers = 1;
      config.skip_gates = false;
      config.xsa_last_n = 0;
      config.ve_layers = {0};
      config.mlp_mult = (static_cast<double>(mlp_dim) + 0.5) / static_cast<double>(config.model_dim);
      ASSERT_EQ(config.mlp_dim(), mlp_dim);
      TensorMap shapes;
      for (const auto& [name, shape] : golf_tensor_shapes(config)) shapes[name] = {DType::kF32, shape, {}};
      Json json = to_json(config);
      json.erase("mlp_mult");
      GolfConfig found;
      ASSERT_NO_THROW(found = resolve_golf_config(json, "config.json", shapes, "model.pt")) << heads << " " << mlp_dim;
      EXPECT_EQ(found.mlp_dim(), mlp_dim);
    }
  }
}

TEST(GolfConfig, TheConfigMustBeAnObject) {
  for (const char* text : {"[]", "3", "null", "\"golf-gpt\""})
    expect_error<FormatError>(
        [&] { resolve_golf_config(Json::parse(text), "config.json", views_of(sample().tensors), "model.pt"); },
        {"config.json", "must be a JSON object"});
}

}  // namespace
}  // namespace thimble::golf_config_test
