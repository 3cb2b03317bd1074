// model.cpp: moves named tensors into the fields of Model.
#include "runtime/families/golf/model.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "runtime/base/parallel.h"
#include "runtime/families/golf/golf_layout.h"

namespace thimble {
namespace {

using TakeTensor = std::function<std::vector<float>(const std::string& name)>;

Matrix take_matrix(const TakeTensor& take, const std::string& name, int64_t rows, int64_t cols) {
  std::vector<float> values = take(name);
  return values.empty() ? Matrix() : Matrix(values, rows, cols);
}

void apply_sigmoid(std::vector<float>& values) {
  for (float& v : values) v = 1.0f / (1.0f + std::exp(-v));
}

std::vector<float> row_of(const std::vector<float>& values, int64_t row, int64_t width) {
  auto first = values.begin() + row * width;
  return {first, first + width};
}

LayerWeights bind_layer(const ModelConfig& c, int64_t layer, const TakeTensor& take) {
  LayerNames names(layer);
  LayerWeights w;
  w.query = take_matrix(take, names.query, c.model_dim, c.model_dim);
  w.output = take_matrix(take, names.output, c.model_dim, c.model_dim);
  w.key = take_matrix(take, names.key, c.kv_dim(), c.model_dim);
  w.value = take_matrix(take, names.value, c.kv_dim(), c.model_dim);
  w.up = take_matrix(take, names.up, c.mlp_dim(), c.model_dim);
  w.down = take_matrix(take, names.down, c.model_dim, c.mlp_dim());
  w.q_gain = take(names.q_gain);
  w.attn_scale = take(names.attn_scale);
  w.mlp_scale = take(names.mlp_scale);
  std::vector<float> mix = take(names.resid_mix);
  w.mix_x = row_of(mix, 0, c.model_dim);
  w.mix_x0 = row_of(mix, 1, c.model_dim);
  return w;
}

// Decoder layer n/2 + j pops skip j. With an odd number of layers the last layer has none.
void bind_skips(const ModelConfig& c, const TakeTensor& take, Model& model) {
  int64_t skips = c.encoder_layers();
  if (skips == 0) return;
  std::vector<float> weights = take("skip_weights");
  std::vector<float> gates;
  if (c.skip_gates) {
    gates = take("skip_gates");
    apply_sigmoid(gates);
  }
  for (int64_t j = 0; j < skips; ++j) {
    LayerWeights& layer = model.layers[static_cast<size_t>(skips + j)];
    layer.skip_weight = row_of(weights, j, c.model_dim);
    if (c.skip_gates) layer.skip_gate = row_of(gates, j, c.model_dim);
  }
}

Model bind(const ModelConfig& c, const TakeTensor& take) {
  Model model;
  model.config = c;
  model.token_embedding = take_matrix(take, kTokenEmbedding, c.vocab_size, c.model_dim);
  if (!c.tie_embeddings) model.untied_head = take_matrix(take, "lm_head.weight", c.vocab_size, c.model_dim);
  for (int64_t i = 0; i < c.num_layers; ++i) model.layers.push_back(bind_layer(c, i, take));
  bind_skips(c, take, model);
  if (c.smear_gate) {
    model.smear_gate = take("smear.gate");
    apply_sigmoid(model.smear_gate);
  }
  if (c.bigram_vocab_size > 0) {
    model.bigram_embedding = take_matrix(take, kBigramEmbedding, c.bigram_vocab_size, c.bigram_dim);
    model.bigram_projection = take_matrix(take, kBigramProjection, c.model_dim, c.bigram_dim);
    model.bigram_scale = take("bigram.scale")[0];
  }
  if (!c.ve_layers.empty()) {
    model.value_embedding = take_matrix(take, kValueEmbedding, c.vocab_size, c.ve_dim);
    model.value_projection = take_matrix(take, kValueProjection, c.kv_dim(), c.ve_dim);
    float shared = take("ve_shared.scale")[0];
    for (size_t k = 0; k < c.ve_layers.size(); ++k)
      model.layers[static_cast<size_t>(c.ve_layers[k])].value_embedding_scale =
          shared * take("ve_layer_scales." + std::to_string(k))[0];
  }
  return model;
}

}  // namespace

int64_t Model::parameter_count() const {
  int64_t count = 0;
  for (const auto& [name, shape] : golf_tensor_shapes(config)) count += element_count(shape);
  return count;
}

std::map<std::string, const Matrix*> golf_matrices(const Model& model) {
  const ModelConfig& c = model.config;
  std::map<std::string, const Matrix*> matrices = {{"tok_emb.weight", &model.token_embedding}};
  if (!c.tie_embeddings) matrices["lm_head.weight"] = &model.untied_head;
  for (size_t i = 0; i < model.layers.size(); ++i) {
    LayerNames names(static_cast<int64_t>(i));
    const LayerWeights& layer = model.layers[i];
    matrices[names.query] = &layer.query;
    matrices[names.key] = &layer.key;
    matrices[names.value] = &layer.value;
    matrices[names.output] = &layer.output;
    matrices[names.up] = &layer.up;
    matrices[names.down] = &layer.down;
  }
  if (c.bigram_vocab_size > 0) {
    matrices["bigram.embed.weight"] = &model.bigram_embedding;
    matrices["bigram.proj.weight"] = &model.bigram_projection;
  }
  if (!c.ve_layers.empty()) {
    matrices["ve_shared.embed.weight"] = &model.value_embedding;
    matrices["ve_shared.proj.weight"] = &model.value_projection;
  }
  return matrices;
}

FloatTensors float_tensors(const TensorMap& tensors) {
  FloatTensors values;
  std::vector<std::pair<const TensorView*, std::vector<float>*>> conversions;
  for (const auto& [name, tensor] : tensors) conversions.emplace_back(&tensor, &values[name]);
  parallel_for(static_cast<int64_t>(conversions.size()), [&](int64_t i) {
    const auto& [from, to] = conversions[static_cast<size_t>(i)];
    *to = to_float32(*from);
  });
  return values;
}

Model bind_model(const ModelConfig& config, const TensorMap& unbanked) {
  return bind_model(config, float_tensors(unbanked));
}

Model bind_model(const ModelConfig& config, FloatTensors tensors) {
  return bind(config, [&](const std::string& name) {
    auto found = tensors.find(name);
    if (found == tensors.end() && is_golf_matrix(name)) return std::vector<float>();
    return std::move(tensors.at(name));
  });
}

}  // namespace thimble
