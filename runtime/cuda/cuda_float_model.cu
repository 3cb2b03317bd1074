// cuda_float_model.cu: see cuda_float_model.cuh.
#include "runtime/cuda/cuda_float_model.cuh"

namespace thimble {
namespace {

DeviceArray<float> on_device(const std::vector<float>& values) {
  return values.empty() ? DeviceArray<float>() : DeviceArray<float>(std::span<const float>(values));
}

CudaFloatLayer matrices_on_device(const LayerWeights& w) {
  CudaFloatLayer layer;
  layer.query = CudaFloatMatrix(w.query);
  layer.output = CudaFloatMatrix(w.output);
  layer.key = CudaFloatMatrix(w.key);
  layer.value = CudaFloatMatrix(w.value);
  layer.up = CudaFloatMatrix(w.up);
  layer.down = CudaFloatMatrix(w.down);
  return layer;
}

void set_vectors(const LayerWeights& w, CudaFloatLayer& layer) {
  layer.q_gain = on_device(w.q_gain);
  layer.attn_scale = on_device(w.attn_scale);
  layer.mlp_scale = on_device(w.mlp_scale);
  layer.mix_x = on_device(w.mix_x);
  layer.mix_x0 = on_device(w.mix_x0);
  layer.skip_weight = on_device(w.skip_weight);
  layer.skip_gate = on_device(w.skip_gate);
  std::vector<float> share, factor;
  for (size_t i = 0; i < w.skip_weight.size(); ++i) {
    share.push_back(w.skip_gate.empty() ? 1.0f : 1.0f - w.skip_gate[i]);
    factor.push_back(w.skip_weight[i] * share.back());
  }
  layer.skip_share = on_device(share);
  layer.skip_factor = on_device(factor);
  layer.value_embedding_scale = w.value_embedding_scale;
}

}  // namespace

CudaFloatModel::CudaFloatModel(const Model& model)
    : config(model.config),
      token_embedding(model.token_embedding),
      untied_head(model.untied_head),
      bigram_embedding(model.bigram_embedding),
      bigram_projection(model.bigram_projection),
      value_embedding(model.value_embedding),
      value_projection(model.value_projection) {
  for (const LayerWeights& w : model.layers) layers.push_back(matrices_on_device(w));
  set_small_tensors(model);
}

void CudaFloatModel::set_small_tensors(const Model& model) {
  bigram_scale = model.bigram_scale;
  smear_gate = on_device(model.smear_gate);
  for (size_t i = 0; i < layers.size(); ++i) set_vectors(model.layers[i], layers[i]);
}

}  // namespace thimble
