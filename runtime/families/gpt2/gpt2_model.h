// gpt2_model.h: a GPT-2 in memory: its config and float32 weights, ready for the forward pass.
#pragma once

#include <string>
#include <vector>

#include "runtime/families/golf/model.h"
#include "runtime/families/gpt2/gpt2_config.h"
#include "runtime/tensor/matrix.h"

namespace thimble {

// y = W x + b.
struct AffineWeights {
  Matrix weight;            // (out, in)
  std::vector<float> bias;  // (out)
};

// Of a layer norm, both (D).
struct NormWeights {
  std::vector<float> weight, bias;
};

// D model width, M MLP width.
struct Gpt2Layer {
  NormWeights attention_norm, mlp_norm;
  AffineWeights query_key_value;   // (3D, D): queries, then keys, then values
  AffineWeights attention_output;  // (D, D)
  AffineWeights up;                // (M, D)
  AffineWeights down;              // (D, M)
};

struct Gpt2Model {
  Gpt2Config config;
  Matrix token_embedding;     // (V, D)
  Matrix position_embedding;  // (T, D)
  Matrix untied_head;         // (V, D), empty when tied
  std::vector<Gpt2Layer> layers;
  NormWeights final_norm;
  Nvfp4Tensors nvfp4;  // of linear_layers(): the codes whose values the matrix has

  const Matrix& head() const { return config.tie_embeddings ? token_embedding : untied_head; }
};

// The tensors, checked by resolve_gpt2_config(), as a model. The caller gives them up.
Gpt2Model bind_gpt2_model(const Gpt2Config& config, FloatTensors tensors);

}  // namespace thimble
