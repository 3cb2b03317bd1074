// gpt2_config.h: the shape and options of a GPT-2, from JSON and from what tensor shapes prove, and its tensors' names.
// The keys are Hugging Face's, and "architecture", which in an artifact names the family. The models of the GPT-3 paper
// with dense attention differ in shape alone.
//
// Names are Hugging Face's, all with the prefix "transformer.", but every matrix is (out, in): the four projections of
// a layer, which Hugging Face's Conv1D stores as (in, out), are transposed (quantizer/checkpoints/gpt2_checkpoint.h).
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "runtime/base/json.h"
#include "runtime/tensor/tensor.h"

namespace thimble {

constexpr const char* kGpt2Family = "gpt2";          // value of "model_type"
constexpr const char* kGpt2Activation = "gelu_new";  // GELU by tanh

// Axis letters: V vocabulary, T positions, D model width, H heads, d head width, M MLP width.
struct Gpt2Config {
  int64_t vocab_size = 0;     // V
  int64_t num_positions = 0;  // T; the model has no embedding for later positions
  int64_t num_layers = 0;     // n
  int64_t num_heads = 0;      // H
  int64_t model_dim = 0;      // D
  int64_t mlp_dim = 0;        // M, usually 4 D
  double norm_epsilon = 0;
  bool tie_embeddings = true;

  int64_t head_dim() const { return model_dim / num_heads; }
};

// The names of layer i's tensors: "transformer.h.<i>.attn.c_attn.weight" and so on.
struct Gpt2LayerNames {
  explicit Gpt2LayerNames(int64_t layer);
  std::string attention_norm, mlp_norm;                     // each ".weight" and ".bias"
  std::string query_key_value, attention_output, up, down;  // the matrices; their biases: bias_name()
};

// The name of the bias beside a ".weight".
std::string bias_name(const std::string& weight_name);

constexpr const char* kGpt2TokenEmbedding = "transformer.wte.weight";
constexpr const char* kGpt2PositionEmbedding = "transformer.wpe.weight";
constexpr const char* kGpt2FinalNorm = "transformer.ln_f.weight";
constexpr const char* kGpt2Head = "lm_head.weight";

// The matrix of the output head: the token embedding when it is tied, else "lm_head.weight".
std::string head_name(const Gpt2Config& config);

// Every tensor of a model with this config.
std::map<std::string, Shape> gpt2_tensor_shapes(const Gpt2Config& config);

// Is the tensor of this name one of the matrices of products and lookups? The others are vectors.
bool is_gpt2_matrix(const std::string& name);

// One of the projections that Conv1D stores as (in, out)?
bool is_gpt2_projection(const std::string& name);

Json to_json(const Gpt2Config& config);

// Builds the config of the GPT-2 whose tensors are `tensors`, as resolve_golf_config() does for a golf-gpt. What would
// change the forward pass and is not GPT-2's (another activation, cross attention, other scales of the attention) is a
// FormatError(config_path) naming the key.
Gpt2Config resolve_gpt2_config(const Json& given, const std::string& config_path, const TensorMap& tensors,
                               const std::string& checkpoint_path);

}  // namespace thimble
