// llama_shapes.h: Llamas that people have, with random weights, for benchmarks.
#pragma once

#include <string_view>

#include "runtime/base/error.h"
#include "tests/runtime/families/llama/random_llama.h"

namespace thimble {

// "smollm2-135m" or "llama-3.2-1b"; a UsageError for other names.
inline LlamaConfig llama_shape(std::string_view name) {
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
    throw UsageError("no shape '" + std::string(name) + "': smollm2-135m or llama-3.2-1b");
  }
  c.is_local.assign(static_cast<size_t>(c.num_layers), false);
  return c;
}

inline std::shared_ptr<const Weights> random_llama(std::string_view shape) {
  const LlamaConfig config = llama_shape(shape);
  return llama_weights(config, random_llama_tensors(config, 1, DType::kBF16));
}

}  // namespace thimble
