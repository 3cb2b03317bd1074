// cuda_float_model.cuh: a Model in device memory as it is in host memory: the same matrices and vectors in float32,
// nothing padded, permuted or joined. For passes whose gradients must have the names and the places that they have on
// the CPU; cuda_model.cuh has the layout for speed. In: Model.  Out: the same fields on the current device.
#pragma once

#include <vector>

#include "runtime/cuda/kernels/cuda_float_matrix.cuh"
#include "runtime/families/golf/model.h"

namespace thimble {

// Fields as in LayerWeights. Vectors that the layer does not have are empty: data() is null.
struct CudaFloatLayer {
  CudaFloatMatrix query, output, key, value, up, down;
  DeviceArray<float> q_gain, attn_scale, mlp_scale, mix_x, mix_x0, skip_weight, skip_gate;
  // What of the skip connection is kept, (1 - gate), or 1 without a gate; and that times the weight.
  DeviceArray<float> skip_share, skip_factor;
  float value_embedding_scale = 0;
};

struct CudaFloatModel {
  explicit CudaFloatModel(const Model& model);

  // Replaces all that is no matrix by what `model` has. Nothing may be running that reads it.
  void set_small_tensors(const Model& model);

  const CudaFloatMatrix& head() const { return config.tie_embeddings ? token_embedding : untied_head; }

  ModelConfig config;
  CudaFloatMatrix token_embedding, untied_head, bigram_embedding, bigram_projection, value_embedding, value_projection;
  float bigram_scale = 0;
  DeviceArray<float> smear_gate;
  std::vector<CudaFloatLayer> layers;
};

}  // namespace thimble
