// small_tensors.cpp: the inverse of model.cpp's binding, for gradients.
#include "runtime/families/small_tensors.h"

#include <cmath>

#include "runtime/families/golf/golf_layout.h"

namespace thimble {
namespace {

void append(std::vector<double>& to, const std::vector<double>& values) {
  to.insert(to.end(), values.begin(), values.end());
}

void through_sigma(const std::vector<float>& gates, std::vector<double>& gradients) {
  for (size_t i = 0; i < gates.size(); ++i) {
    const double sigma = 1 / (1 + std::exp(-static_cast<double>(gates[i])));
    gradients[i] *= sigma * (1 - sigma);
  }
}

// A layer's scale is the product of the shared one and its own.
void add_value_scales(const ModelConfig& c, const FloatTensors& small, const SmallGradients& gradients,
                      NamedGradients& named) {
  const std::string shared_name = "ve_shared.scale";
  const double shared = small.at(shared_name)[0];
  double of_shared = 0;
  for (size_t k = 0; k < c.ve_layers.size(); ++k) {
    const std::string name = "ve_layer_scales." + std::to_string(k);
    const double of_product = gradients.layers[static_cast<size_t>(c.ve_layers[k])].value_embedding_scale;
    named[name] = {of_product * shared};
    of_shared += of_product * static_cast<double>(small.at(name)[0]);
  }
  named[shared_name] = {of_shared};
}

}  // namespace

NamedGradients stored_gradients(const ModelConfig& c, const FloatTensors& small, const SmallGradients& gradients) {
  NamedGradients named;
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const LayerNames names(i);
    const LayerGradients& layer = gradients.layers[static_cast<size_t>(i)];
    named[names.q_gain] = layer.q_gain;
    named[names.attn_scale] = layer.attn_scale;
    named[names.mlp_scale] = layer.mlp_scale;
    named[names.resid_mix] = layer.mix_x;
    append(named[names.resid_mix], layer.mix_x0);
    if (!layer.skip_weight.empty()) append(named["skip_weights"], layer.skip_weight);
    if (!layer.skip_gate.empty()) append(named["skip_gates"], layer.skip_gate);
  }
  if (c.skip_gates && c.encoder_layers() > 0) through_sigma(small.at("skip_gates"), named.at("skip_gates"));
  if (c.smear_gate) {
    named["smear.gate"] = gradients.smear_gate;
    through_sigma(small.at("smear.gate"), named.at("smear.gate"));
  }
  if (c.bigram_vocab_size > 0) named["bigram.scale"] = {gradients.bigram_scale};
  if (!c.ve_layers.empty()) add_value_scales(c, small, gradients, named);
  return named;
}

void set_small_tensors(Model& model, const FloatTensors& small) {
  Model bound = bind_model(model.config, small);
  model.bigram_scale = bound.bigram_scale;
  model.smear_gate = std::move(bound.smear_gate);
  for (size_t i = 0; i < model.layers.size(); ++i) {
    LayerWeights &to = model.layers[i], &from = bound.layers[i];
    to.q_gain = std::move(from.q_gain);
    to.attn_scale = std::move(from.attn_scale);
    to.mlp_scale = std::move(from.mlp_scale);
    to.mix_x = std::move(from.mix_x);
    to.mix_x0 = std::move(from.mix_x0);
    to.skip_weight = std::move(from.skip_weight);
    to.skip_gate = std::move(from.skip_gate);
    to.value_embedding_scale = from.value_embedding_scale;
  }
}

}  // namespace thimble
