// llama_network_test.cpp: that every tensor and option of Llama and its relatives matters, how their files are read,
// and which tensors tell a family.
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/base/error.h"
#include "runtime/families/family.h"
#include "tests/runtime/base/error_matcher.h"
#include "tests/runtime/families/llama/llama_cases.h"
#include "tests/runtime/families/llama/naive_llama.h"

namespace thimble::llama_network_test {
namespace {

constexpr int64_t kWindow = 23;

double difference(const LlamaConfig& one, const OwnedTensors& tensors, const LlamaConfig& other,
                  const OwnedTensors& changed) {
  const std::vector<Token> tokens = random_tokens(kWindow, one.vocab_size, 4);
  const NaiveRows expected = naive_llama_forward(one, views_of(tensors), tokens).logits;
  const NaiveRows found = naive_llama_forward(other, views_of(changed), tokens).logits;
  return largest_difference(found, expected) / largest_value(expected);
}

// The comparisons with naive passes can fail: each of these moves the logits by far more than the tolerance.
TEST(LlamaNetwork, AllOptionsMatterToTheLogits) {
  const LlamaConfig config = small_llama_config("gemma3_text");
  const OwnedTensors tensors = random_llama_tensors(config, 3);
  const std::function<void(LlamaConfig&)> changes[] = {
      [](LlamaConfig& c) { c.num_heads = 2, c.head_dim = 12, c.num_kv_heads = 1; },
      [](LlamaConfig& c) { c.norm_epsilon = 0.01; },
      [](LlamaConfig& c) { c.query_scalar = 6; },
      [](LlamaConfig& c) { c.window = 6; },
      [](LlamaConfig& c) {
        c.is_local = {true, true, true};
      },
      [](LlamaConfig& c) { c.rope.theta = 60; },
      [](LlamaConfig& c) { c.local_rope.theta = 60; },
      [](LlamaConfig& c) { c.rope.type = "linear", c.rope.factor = 2; },
      [](LlamaConfig& c) { c.rope.type = "llama3", c.rope.factor = 2, c.rope.original_positions = 30; },
  };
  for (size_t i = 0; i < std::size(changes); ++i) {
    LlamaConfig other = config;
    changes[i](other);
    const bool other_heads = other.head_dim != config.head_dim;
    OwnedTensors changed = tensors;
    if (other_heads) changed = random_llama_tensors(other, 3);
    EXPECT_GT(difference(config, tensors, other, changed), 0x1p-10) << i;
  }
}

TEST(LlamaNetwork, AllTensorsMatterToTheLogits) {
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3", "gemma3_text"}) {
    LlamaConfig config = small_llama_config(type);
    config.attention_bias = config.variant->may_have_attention_biases;
    config.mlp_bias = config.variant->may_have_mlp_biases;
    const OwnedTensors tensors = random_llama_tensors(config, 3);
    for (const auto& [name, tensor] : tensors) {
      if (name.ends_with("k_proj.bias") && !config.variant->has_head_norms)
        continue;  // moves all scores of a row alike
      OwnedTensors changed = tensors;
      std::vector<float> values = to_float32(tensor.view());
      for (float& value : values) value = 1.25f * value + 0.1f;
      changed[name].bytes = from_float32(DType::kF32, values);
      EXPECT_GT(difference(config, tensors, config, changed), 0x1p-12) << type << " " << name;
    }
  }
}

TEST(LlamaNetwork, HasTheRolesOfItsTensors) {
  LlamaConfig config = small_llama_config("qwen3");
  config.tie_embeddings = false;
  const Network network = llama_network(config);
  EXPECT_EQ(network.layers, 3);
  EXPECT_EQ(network.parameters.size(), llama_tensor_shapes(config).size());
  for (const Parameter& parameter : network.parameters) {
    const bool is_linear = parameter.name.ends_with("_proj.weight");
    EXPECT_EQ(parameter.role == Role::kLinear, is_linear) << parameter.name;
    EXPECT_EQ(parameter.role == Role::kTable, parameter.name == kLlamaEmbedding) << parameter.name;
    EXPECT_EQ(parameter.role == Role::kHead, parameter.name == kLlamaHead) << parameter.name;
  }
  EXPECT_EQ(network.linear_matrices().size(), 3u * 7u);
  EXPECT_EQ(network.matrix(network.head.weight).name, kLlamaHead);
}

// Without a model_type the tensors tell, but for a Mistral, whose tensors are a Llama's.
TEST(LlamaFamilies, AreToldByTheirTensors) {
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3", "gemma3_text"}) {
    const OwnedTensors tensors = random_llama_tensors(small_llama_config(type));
    const Family* found = find_family(Json::object(), views_of(tensors));
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(found->name(), type == std::string("mistral") ? "llama" : type);
    EXPECT_EQ(find_family({{"model_type", type}}, {})->name(), type);
  }
  EXPECT_EQ(find_family({{"model_type", "mixtral"}}, {}), nullptr);
  EXPECT_EQ(find_family({{"model_type", "gemma3"}}, {}), nullptr);
}

TEST(LlamaFamilies, ReadFilesOfTheBareModel) {
  const LlamaFamily family("llama");
  const OwnedTensors tensors = random_llama_tensors(small_llama_config("llama"));
  OwnedTensors stored;
  for (const auto& [name, tensor] : tensors) stored[name.substr(6)] = tensor;
  stored["lm_head.weight"] = tensors.at(kLlamaEmbedding);
  stored["layers.0.self_attn.rotary_emb.inv_freq"] = {DType::kF32, {3}, ByteVector(12)};
  const TensorMap views = views_of(stored);
  const MappedTensors mapped = family.from_file(views, Contents::kBytes, "m.safetensors");
  ASSERT_EQ(mapped.tensors.size(), tensors.size());
  for (const auto& [name, tensor] : tensors)
    EXPECT_TRUE(std::ranges::equal(mapped.tensors.at(name).bytes, tensor.bytes)) << name;
  stored["model.norm.weight"] = stored.at("norm.weight");
  const TensorMap twice = views_of(stored);
  expect_error<FormatError>([&] { family.from_file(twice, Contents::kBytes, "m.safetensors"); },
                            {"m.safetensors", "'norm.weight' and 'model.norm.weight' are the same"});
}

TEST(LlamaFamilies, AnotherHeadIsNoTiedCopy) {
  const LlamaFamily family("llama");
  OwnedTensors stored = random_llama_tensors(small_llama_config("llama"));
  stored["lm_head.weight"] = stored.at(kLlamaEmbedding);
  stored["lm_head.weight"].bytes[5] ^= std::byte{1};
  EXPECT_TRUE(family.from_file(views_of(stored), Contents::kBytes, "m").tensors.contains(kLlamaHead));
}

}  // namespace
}  // namespace thimble::llama_network_test
