// llama_config.h: the shape and options of the decoders that Hugging Face calls llama, mistral, qwen2, qwen3 and
// gemma3_text, from JSON and from what tensor shapes prove, and their tensors' names. Keys and names are Hugging
// Face's; every matrix is (out, in) as it is stored.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/ops/activation.h"
#include "runtime/tensor/tensor.h"

namespace thimble {

// What a "model_type" alone says of a model.
struct LlamaVariant {
  const char* model_type;
  const char* architecture;                   // the class of Hugging Face's library
  Activation activation = Activation::kSilu;  // of the MLP's gate
  bool has_query_biases = false;              // of queries, keys and values, whatever the config says
  bool may_have_attention_biases = false;     // of all four projections, by "attention_bias"
  bool may_have_mlp_biases = false;           // by "mlp_bias"
  bool has_head_norms = false;                // RMS norms of queries and keys, head by head
  bool has_post_norms = false;                // norms of what attention and MLP add to the stream
  bool is_gemma = false;  // norms times 1 + weight, the embedding times sqrt(D), a scale of queries from the config,
                          // and a rotary base of their own for local layers
  double default_rope_theta = 10000;
};

// The variant of this model_type, which must be one of the five.
const LlamaVariant& llama_variant(std::string_view model_type);

// frequency(k) = theta^(-2k / d), changed by `type`.
struct LlamaRope {
  double theta = 10000;
  std::string type = "default";                              // or "linear": / factor; or "llama3"
  double factor = 1, low_frequency = 1, high_frequency = 4;  // all but the factor: of llama3
  int64_t original_positions = 0;                            // of llama3

  std::vector<double> frequencies(int64_t head_dim) const;  // (d / 2)
  bool operator==(const LlamaRope&) const = default;
};

// Axis letters: V vocabulary, D model width, H heads, G key/value heads, d head width, M MLP width.
struct LlamaConfig {
  const LlamaVariant* variant = nullptr;
  int64_t vocab_size = 0;  // V
  int64_t num_layers = 0;
  int64_t num_heads = 0;      // H
  int64_t num_kv_heads = 0;   // G
  int64_t head_dim = 0;       // d, not always D / H
  int64_t model_dim = 0;      // D
  int64_t mlp_dim = 0;        // M
  int64_t max_positions = 0;  // of the training; 0: not known. Longer sequences run.
  double norm_epsilon = 0;
  bool tie_embeddings = true, attention_bias = false, mlp_bias = false;
  double query_scalar = 0;     // scores are q k^T / sqrt(query_scalar): d, but for Gemma
  int64_t window = 0;          // positions that a local layer sees; 0: none is local
  std::vector<bool> is_local;  // (layers)
  LlamaRope rope, local_rope;  // the second one: of Gemma's local layers

  bool has_query_biases() const { return variant->has_query_biases || attention_bias; }
};

constexpr const char* kLlamaEmbedding = "model.embed_tokens.weight";
constexpr const char* kLlamaFinalNorm = "model.norm.weight";
constexpr const char* kLlamaHead = "lm_head.weight";

// "model.layers.<layer>.<member>", member as "self_attn.q_proj.weight".
std::string llama_name(int64_t layer, const std::string& member);

// Every tensor of a model with this config.
std::map<std::string, Shape> llama_tensor_shapes(const LlamaConfig& config);

Json to_json(const LlamaConfig& config);
// The same with "architectures", and with the rotary frequencies under both spellings of their keys, which readers of
// different age look for.
Json hub_config(const LlamaConfig& config);

// Builds the config of the model whose tensors are `tensors`, whose shapes must agree with it. What would change the
// forward pass and is not known here (other activations, rotary scalings, soft caps, experts) is a
// FormatError(config_path) naming the key, its value and what is allowed.
LlamaConfig resolve_llama_config(const LlamaVariant& variant, const Json& given, const std::string& config_path,
                                 const TensorMap& tensors, const std::string& checkpoint_path);

}  // namespace thimble
