// gpt2_config.cpp: reads a config with Hugging Face's keys, infers what tensor shapes prove, and cross-checks the two.
#include "runtime/families/gpt2/gpt2_config.h"

#include "runtime/families/config_reader.h"

namespace thimble {
namespace {

constexpr const char* kFamily = "GPT-2";
// Epsilons whose float32 value is positive and normal.
constexpr double kMinEpsilon = 1e-30, kMaxEpsilon = 1;

std::string layer_prefix(int64_t layer) { return "transformer.h." + std::to_string(layer) + "."; }

const Shape& shape_of(const TensorMap& tensors, std::string_view name, const std::string& path) {
  return find_tensor(tensors, std::string(name), 2, path, kFamily).shape;
}

// The keys that shapes prove.
void infer_from_tensors(const ConfigReader& reader, const TensorMap& tensors, const std::string& path, Gpt2Config& c) {
  const Shape& embedding = shape_of(tensors, kGpt2TokenEmbedding, path);
  c.vocab_size = reader.proven("vocab_size", embedding[0], kGpt2TokenEmbedding);
  check_vocabulary(c.vocab_size, kGpt2TokenEmbedding, path);
  c.model_dim = reader.proven("n_embd", embedding[1], kGpt2TokenEmbedding);
  c.num_positions =
      reader.proven("n_positions", shape_of(tensors, kGpt2PositionEmbedding, path)[0], kGpt2PositionEmbedding);
  int64_t layers = 0;
  while (layers < kMaxLayers && tensors.contains(Gpt2LayerNames(layers).query_key_value)) ++layers;
  const Gpt2LayerNames first(0);
  if (layers == 0) shape_of(tensors, first.query_key_value, path);
  c.num_layers = reader.proven("n_layer", layers, Gpt2LayerNames(layers - 1).query_key_value);
  c.mlp_dim = shape_of(tensors, first.up, path)[0];
  c.tie_embeddings = reader.proven("tie_word_embeddings", !tensors.contains(kGpt2Head), kGpt2Head);
}

// Null stands for 4 D.
void check_inner_width(const Json& given, const ConfigReader& reader, const Gpt2Config& c) {
  auto found = given.find("n_inner");
  if (found == given.end()) return;
  if (!found->is_null())
    reader.proven("n_inner", c.mlp_dim, Gpt2LayerNames(0).up);
  else if (c.mlp_dim != 4 * c.model_dim)
    reader.reject("n_inner", std::to_string(c.mlp_dim) + ", as tensor '" + Gpt2LayerNames(0).up + "' has it");
}

// The keys that only the config can tell.
void read_required(const ConfigReader& reader, Gpt2Config& c) {
  c.num_heads = reader.required<int64_t>("n_head", "it says how the width is divided into heads");
  if (c.num_heads < 1 || c.model_dim % c.num_heads != 0)
    reader.reject("n_head", "a divisor of the model width, " + std::to_string(c.model_dim));
  c.norm_epsilon = reader.required<double>("layer_norm_epsilon", "the norms add it to the variance");
  if (!(c.norm_epsilon >= kMinEpsilon && c.norm_epsilon <= kMaxEpsilon))
    reader.reject("layer_norm_epsilon", "from 1e-30 to 1");
  if (reader.required<std::string>("activation_function", "it names the MLP's nonlinearity") != kGpt2Activation)
    reader.reject("activation_function", "'" + std::string(kGpt2Activation) + "'");
}

// Variants of the family that other programs run under the same name.
void refuse_variants(const ConfigReader& reader) {
  if (!reader.optional("scale_attn_weights", true)) reader.reject("scale_attn_weights", "true");
  for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"})
    if (reader.optional(key, false)) reader.reject(key, "false");
}

}  // namespace

Gpt2LayerNames::Gpt2LayerNames(int64_t layer)
    : attention_norm(layer_prefix(layer) + "ln_1.weight"),
      mlp_norm(layer_prefix(layer) + "ln_2.weight"),
      query_key_value(layer_prefix(layer) + "attn.c_attn.weight"),
      attention_output(layer_prefix(layer) + "attn.c_proj.weight"),
      up(layer_prefix(layer) + "mlp.c_fc.weight"),
      down(layer_prefix(layer) + "mlp.c_proj.weight") {}

std::string bias_name(const std::string& weight_name) {
  return weight_name.substr(0, weight_name.rfind('.')) + ".bias";
}

std::string head_name(const Gpt2Config& config) { return config.tie_embeddings ? kGpt2TokenEmbedding : kGpt2Head; }

std::map<std::string, Shape> gpt2_tensor_shapes(const Gpt2Config& c) {
  std::map<std::string, Shape> shapes = {{kGpt2TokenEmbedding, {c.vocab_size, c.model_dim}},
                                         {kGpt2PositionEmbedding, {c.num_positions, c.model_dim}},
                                         {kGpt2FinalNorm, {c.model_dim}}};
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const Gpt2LayerNames names(i);
    shapes[names.attention_norm] = shapes[names.mlp_norm] = {c.model_dim};
    shapes[names.query_key_value] = {3 * c.model_dim, c.model_dim};
    shapes[names.attention_output] = {c.model_dim, c.model_dim};
    shapes[names.up] = {c.mlp_dim, c.model_dim};
    shapes[names.down] = {c.model_dim, c.mlp_dim};
  }
  std::map<std::string, Shape> biases;
  for (const auto& [name, shape] : shapes)
    if (name != kGpt2TokenEmbedding && name != kGpt2PositionEmbedding) biases[bias_name(name)] = {shape[0]};
  shapes.merge(biases);
  if (!c.tie_embeddings) shapes[kGpt2Head] = {c.vocab_size, c.model_dim};
  return shapes;
}

bool is_gpt2_projection(const std::string& name) {
  for (const char* end : {".attn.c_attn.weight", ".attn.c_proj.weight", ".mlp.c_fc.weight", ".mlp.c_proj.weight"})
    if (name.ends_with(end)) return true;
  return false;
}

bool is_gpt2_matrix(const std::string& name) {
  return is_gpt2_projection(name) || name == kGpt2TokenEmbedding || name == kGpt2PositionEmbedding || name == kGpt2Head;
}

Json to_json(const Gpt2Config& c) {
  return {{"architecture", kGpt2Family},
          {"vocab_size", c.vocab_size},
          {"n_positions", c.num_positions},
          {"n_layer", c.num_layers},
          {"n_head", c.num_heads},
          {"n_embd", c.model_dim},
          {"n_inner", c.mlp_dim},
          {"layer_norm_epsilon", c.norm_epsilon},
          {"tie_word_embeddings", c.tie_embeddings},
          {"activation_function", kGpt2Activation}};
}

Gpt2Config resolve_gpt2_config(const Json& given, const std::string& config_path, const TensorMap& tensors,
                               const std::string& checkpoint_path) {
  ConfigReader reader(given, config_path);
  if (given.value("architecture", given.value("model_type", Json())) != Json(kGpt2Family)) {
    reader.required<std::string>("model_type", "it names the model family");
    reader.reject("model_type", "'" + std::string(kGpt2Family) + "'");
  }
  Gpt2Config config;
  infer_from_tensors(reader, tensors, checkpoint_path, config);
  check_inner_width(given, reader, config);
  read_required(reader, config);
  refuse_variants(reader);
  return config;
}

}  // namespace thimble
