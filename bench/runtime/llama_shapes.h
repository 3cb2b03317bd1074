// llama_shapes.h: Llamas that people have, with random weights, for benchmarks.
#pragma once

#include <optional>
#include <string_view>

#include "tests/runtime/families/llama/random_llama.h"

namespace thimble {

// "smollm2-135m" or "llama-3.2-1b"; nullopt: there is no such shape.
inline std::optional<LlamaConfig> llama_shape(std::string_view name) {
  LlamaConfig c;
  c.variant = &llama_variant("llama");
  c.head_dim = 64;
  c.query_scalar = 64;
  c.norm_epsilon = 1e-5;
  c.rope.theta = 100'000;
  if (name == "smollm2-135m") {
    c.vocab_size = 49'152, c.num_layers = 30, c.num_heads = 9, c.num_kv_heads = 3, c.model_dim = 576, c.mlp_dim = 1536;
  } else if (name == "llama-3.2-1b") {
    c.vocab_size = 128'256, c.num_layers = 16, c.num_heads = 32, c.num_kv_heads = 8, c.model_dim = 2048;
    c.mlp_dim = 8192;
  } else {
    return std::nullopt;
  }
  c.is_local.assign(static_cast<size_t>(c.num_layers), false);
  return c;
}

inline std::shared_ptr<const Weights> random_llama(const LlamaConfig& config) {
  return llama_weights(config, random_llama_tensors(config, 1, DType::kBF16));
}

}  // namespace thimble
