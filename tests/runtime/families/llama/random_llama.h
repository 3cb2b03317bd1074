// random_llama.h: checkpoints of Llama and its relatives with random weights. The same config and seed give the same
// bytes on every machine.
#pragma once

#include <cmath>
#include <iterator>

#include "runtime/base/parallel.h"
#include "runtime/families/llama/llama_family.h"
#include "runtime/ops/weights.h"
#include "tests/runtime/ops/random_tokens.h"
#include "tests/runtime/tensor/owned_tensors.h"

namespace thimble {

// Three layers, awkward widths, heads that are not the width's parts, two query heads for each key/value head; windows
// and rotary bases where the family has them.
inline LlamaConfig small_llama_config(std::string_view model_type) {
  LlamaConfig c;
  c.variant = &llama_variant(model_type);
  c.vocab_size = 29;
  c.num_layers = 3;
  c.num_heads = 4;
  c.num_kv_heads = 2;
  c.head_dim = 6;
  c.model_dim = 18;
  c.mlp_dim = 27;
  c.norm_epsilon = 1e-5;
  c.query_scalar = c.variant->is_gemma ? 10 : 6;
  c.rope.theta = 50;
  c.local_rope.theta = c.variant->is_gemma ? 9 : c.local_rope.theta;
  c.is_local = {false, false, false};
  if (model_type == "mistral") c.is_local = {true, true, true};
  if (c.variant->is_gemma) c.is_local = {true, false, true};
  if (c.is_local[0]) c.window = 5;
  return c;
}

// Matrices keep the scale of their input; norms, biases and embeddings are large enough that each term matters.
inline WeightRange llama_weight_range(const LlamaConfig& config, const std::string& name, const Shape& shape) {
  if (name.ends_with(".bias")) return {0.1, 0.5};
  if (shape.size() == 1) return {config.variant->is_gemma ? -0.1 : 0.9, 0.5};  // norms
  if (name == kLlamaEmbedding) return {0, config.variant->is_gemma ? 0.3 : 0.8};
  return {0, 1.2 * std::sqrt(3.0 / static_cast<double>(shape[1]))};
}

inline OwnedTensors random_llama_tensors(const LlamaConfig& config, uint64_t seed = 1, DType dtype = DType::kF32) {
  const auto shapes = llama_tensor_shapes(config);
  OwnedTensors tensors;
  for (const auto& [name, shape] : shapes) tensors[name];
  // Each from a stream of its own: a benchmark's shape has a billion weights.
  parallel_for(std::ssize(shapes), [&](int64_t stream) {
    const auto& [name, shape] = *std::next(shapes.begin(), stream);
    tensors.at(name) =
        random_tensor(llama_weight_range(config, name, shape), shape, dtype, seed, static_cast<uint64_t>(stream));
  });
  return tensors;
}

inline std::shared_ptr<const Weights> llama_weights(const LlamaConfig& config, const OwnedTensors& tensors) {
  return std::make_shared<const Weights>(
      bind_weights(std::make_shared<const Network>(llama_network(config)), float_tensors(views_of(tensors))));
}

}  // namespace thimble
