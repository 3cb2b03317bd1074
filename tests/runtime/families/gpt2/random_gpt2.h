// random_gpt2.h: GPT-2 checkpoints with random weights. The same config and seed give the same bytes on every machine.
#pragma once

#include "runtime/families/gpt2/gpt2_config.h"
#include "runtime/families/gpt2/gpt2_family.h"
#include "runtime/ops/weights.h"
#include "tests/runtime/ops/random_tokens.h"
#include "tests/runtime/tensor/owned_tensors.h"

namespace thimble {

// Three layers, awkward widths, an MLP that is not four times as wide as the model.
inline Gpt2Config small_gpt2_config() {
  Gpt2Config c;
  c.vocab_size = 29;
  c.num_positions = 40;
  c.num_layers = 3;
  c.num_heads = 4;
  c.model_dim = 20;
  c.mlp_dim = 50;
  c.norm_epsilon = 1e-5;
  return c;
}

// Matrices keep the scale of their input; norms, biases and embeddings are large enough that each term matters.
inline WeightRange gpt2_weight_range(const std::string& name, const Shape& shape) {
  if (name.ends_with(".bias")) return {0.1, 0.5};
  if (shape.size() == 1) return {0.9, 0.5};  // norms
  if (is_gpt2_projection(name) || name == kGpt2Head) return {0, 2 * std::sqrt(3.0 / static_cast<double>(shape[1]))};
  return {0, 0.8};  // embeddings
}

// Every tensor of the model, projections as (out, in).
inline OwnedTensors random_gpt2_tensors(const Gpt2Config& config, uint64_t seed = 1, DType dtype = DType::kF32) {
  OwnedTensors tensors;
  uint64_t stream = 0;
  for (const auto& [name, shape] : gpt2_tensor_shapes(config)) {
    tensors[name] = random_tensor(gpt2_weight_range(name, shape), shape, dtype, seed, stream++);
  }
  return tensors;
}

inline std::shared_ptr<const Weights> gpt2_weights(const Gpt2Config& config, const OwnedTensors& tensors) {
  return std::make_shared<const Weights>(
      bind_weights(std::make_shared<const Network>(gpt2_network(config)), float_tensors(views_of(tensors))));
}

inline std::shared_ptr<const Weights> random_gpt2_weights(const Gpt2Config& config, uint64_t seed = 1) {
  return gpt2_weights(config, random_gpt2_tensors(config, seed));
}

}  // namespace thimble
