// model.h: a golf-gpt in memory: its config and float32 weights, ready for the forward pass.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/codes/nvfp4_matrix.h"
#include "runtime/families/golf/model_config.h"
#include "runtime/tensor/matrix.h"
#include "runtime/tensor/tensor.h"

namespace thimble {

// D model width, H heads, K = G*d key/value width, M MLP width. Matrices are (out, in).
struct LayerWeights {
  Matrix query, output;                      // (D, D)
  Matrix key, value;                         // (K, D)
  Matrix up;                                 // (M, D)
  Matrix down;                               // (D, M)
  std::vector<float> q_gain;                 // (H)
  std::vector<float> attn_scale, mlp_scale;  // (D)
  std::vector<float> mix_x, mix_x0;          // (D): u = mix_x * x + mix_x0 * x0
  // Decoder layers that pop a skip connection: its weight and, when gated, sigma(gate). Empty otherwise.
  std::vector<float> skip_weight, skip_gate;  // (D)
  float value_embedding_scale = 0;            // ve scale times the layer's own; 0: the layer has none
};

struct Model {
  ModelConfig config;
  Matrix token_embedding;                      // (V, D)
  Matrix untied_head;                          // (V, D), empty when tied
  Matrix bigram_embedding, bigram_projection;  // (B, b), (D, b); empty without bigrams
  float bigram_scale = 0;
  std::vector<float> smear_gate;             // (D), sigma applied; empty without smear
  Matrix value_embedding, value_projection;  // (V, e), (K, e); empty without value embeddings
  std::vector<LayerWeights> layers;
  Nvfp4Tensors nvfp4;  // of linear_layers(): the codes whose values the matrix has

  const Matrix& head() const { return config.tie_embeddings ? token_embedding : untied_head; }
  int64_t parameter_count() const;
};

// The model's matrices (is_golf_matrix()) by unbanked name.
std::map<std::string, const Matrix*> golf_matrices(const Model& model);

// Copies unbanked tensors (checked by resolve_model_config) into a Model, converting to float32.
Model bind_model(const ModelConfig& config, const TensorMap& unbanked);

// The same for float32 tensors that the caller gives up, which halves the peak memory of decoding. Matrices
// (is_golf_matrix()) that are not among them stay empty, for a caller who has them elsewhere.
using FloatTensors = std::map<std::string, std::vector<float>>;
Model bind_model(const ModelConfig& config, FloatTensors tensors);

// All tensors converted to float32.
FloatTensors float_tensors(const TensorMap& tensors);

}  // namespace thimble
