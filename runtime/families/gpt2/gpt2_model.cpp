// gpt2_model.cpp: moves named tensors into the fields of Gpt2Model.
#include "runtime/families/gpt2/gpt2_model.h"

namespace thimble {
namespace {

class Binder {
 public:
  explicit Binder(FloatTensors tensors) : tensors_(std::move(tensors)) {}

  std::vector<float> vector(const std::string& name) { return std::move(tensors_.at(name)); }
  Matrix matrix(const std::string& name, int64_t rows, int64_t cols) { return {vector(name), rows, cols}; }
  AffineWeights affine(const std::string& name, int64_t rows, int64_t cols) {
    return {matrix(name, rows, cols), vector(bias_name(name))};
  }
  NormWeights norm(const std::string& name) { return {vector(name), vector(bias_name(name))}; }

 private:
  FloatTensors tensors_;
};

Gpt2Layer bind_layer(const Gpt2Config& c, int64_t layer, Binder& binder) {
  const Gpt2LayerNames names(layer);
  Gpt2Layer w;
  w.attention_norm = binder.norm(names.attention_norm);
  w.mlp_norm = binder.norm(names.mlp_norm);
  w.query_key_value = binder.affine(names.query_key_value, 3 * c.model_dim, c.model_dim);
  w.attention_output = binder.affine(names.attention_output, c.model_dim, c.model_dim);
  w.up = binder.affine(names.up, c.mlp_dim, c.model_dim);
  w.down = binder.affine(names.down, c.model_dim, c.mlp_dim);
  return w;
}

}  // namespace

Gpt2Model bind_gpt2_model(const Gpt2Config& c, FloatTensors tensors) {
  Binder binder(std::move(tensors));
  Gpt2Model model;
  model.config = c;
  model.token_embedding = binder.matrix(kGpt2TokenEmbedding, c.vocab_size, c.model_dim);
  model.position_embedding = binder.matrix(kGpt2PositionEmbedding, c.num_positions, c.model_dim);
  if (!c.tie_embeddings) model.untied_head = binder.matrix(kGpt2Head, c.vocab_size, c.model_dim);
  for (int64_t i = 0; i < c.num_layers; ++i) model.layers.push_back(bind_layer(c, i, binder));
  model.final_norm = binder.norm(kGpt2FinalNorm);
  return model;
}

}  // namespace thimble
