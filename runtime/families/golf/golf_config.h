// golf_config.h: the shape and options of a golf-gpt model, from JSON and from what tensor shapes prove.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/tensor/tensor.h"

namespace thimble {

constexpr const char* kGolfArchitecture = "golf-gpt";
constexpr const char* kGolfActivation = "leaky_relu_0.5_squared";

// Axis letters: V vocabulary, D model width, H query heads, G key/value heads, d head width, M MLP width.
struct GolfConfig {
  int64_t vocab_size = 0;    // V
  int64_t num_layers = 0;    // n
  int64_t model_dim = 0;     // D
  int64_t num_heads = 0;     // H
  int64_t num_kv_heads = 0;  // G
  double mlp_mult = 0;       // M = int(mlp_mult * D)
  bool tie_embeddings = true;
  double logit_softcap = 0;
  double rope_base = 0;
  int64_t rope_dims = 0;           // leading dimensions of each head that rotate; even, at most d
  int64_t rope_train_seq_len = 0;  // longer contexts raise the base
  bool ln_scale = false;
  int64_t xsa_last_n = 0;         // the last layers that use exclusive self-attention
  int64_t bigram_vocab_size = 0;  // 0: no bigram embedding
  int64_t bigram_dim = 0;
  bool smear_gate = false;
  bool skip_gates = false;
  std::vector<int64_t> ve_layers;  // layers that add the value embedding; empty: none
  int64_t ve_dim = 0;

  int64_t head_dim() const { return model_dim / num_heads; }
  int64_t kv_dim() const { return num_kv_heads * head_dim(); }
  int64_t mlp_dim() const { return static_cast<int64_t>(mlp_mult * static_cast<double>(model_dim)); }
  int64_t encoder_layers() const { return num_layers / 2; }  // layers whose outputs are skip connections
  // The rotary base at context length T: rope_base up to the training length, then
  // rope_base * (T / train)^(rope_dims / (rope_dims - 2)).
  double rope_base_at(int64_t context_length) const;
};

Json to_json(const GolfConfig& config);

// Builds the config of the golf-gpt whose unbanked tensors are `tensors`. Whatever shapes prove is inferred when
// `given` lacks it and must agree when `given` has it; the rest must be in `given`. A missing or contradicting key is a
// FormatError(config_path) naming key, value and tensor.
GolfConfig resolve_golf_config(const Json& given, const std::string& config_path, const TensorMap& tensors,
                               const std::string& checkpoint_path);

}  // namespace thimble
