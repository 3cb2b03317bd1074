// llama_cases.h: shapes and options of Llama and its relatives, at least two of each.
#pragma once

#include <functional>

#include "tests/runtime/families/llama/random_llama.h"

namespace thimble {

struct LlamaCase {
  const char *name, *model_type;
  std::function<void(LlamaConfig&)> change = [](LlamaConfig&) {};
  int64_t window = 23, context = 23;
};

inline LlamaConfig config_of(const LlamaCase& llama) {
  LlamaConfig config = small_llama_config(llama.model_type);
  llama.change(config);
  return config;
}

inline void use_heads(LlamaConfig& c, int64_t heads, int64_t kv_heads, int64_t head_dim) {
  c.num_heads = heads;
  c.num_kv_heads = kv_heads;
  c.head_dim = head_dim;
  if (!c.variant->is_gemma) c.query_scalar = static_cast<double>(head_dim);
}

inline const LlamaCase kLlamaCases[] = {
    {"Llama", "llama"},
    {"LlamaUntiedWithBiases", "llama",
     [](LlamaConfig& c) {
       c.tie_embeddings = false;
       c.attention_bias = c.mlp_bias = true;
       use_heads(c, 3, 3, 10);
     }},
    {"LlamaStretchedWaves", "llama",
     [](LlamaConfig& c) {
       c.rope = {.theta = 500,
                 .type = "llama3",
                 .factor = 8,
                 .low_frequency = 1,
                 .high_frequency = 4,
                 .original_positions = 60};
       use_heads(c, 16, 1, 16);
     }},
    {"LlamaLinearWaves", "llama",
     [](LlamaConfig& c) {
       c.rope.type = "linear";
       c.rope.factor = 2.5;
     },
     9, 40},
    {"LlamaOneToken", "llama", [](LlamaConfig&) {}, 1, 1},
    {"LlamaHeadsOf80", "llama", [](LlamaConfig& c) { use_heads(c, 2, 1, 80); }},
    {"LlamaHeadsOf256", "llama", [](LlamaConfig& c) { use_heads(c, 1, 1, 256); }, 9, 9},
    {"Mistral", "mistral"},
    {"MistralWindowOfOne", "mistral",
     [](LlamaConfig& c) {
       c.window = 1;
       c.tie_embeddings = false;
     }},
    {"MistralWideWindow", "mistral", [](LlamaConfig& c) { c.window = 100; }},
    {"Qwen2", "qwen2"},
    {"Qwen2LateWindows", "qwen2",
     [](LlamaConfig& c) {
       c.tie_embeddings = false;
       c.window = 7;
       c.is_local = {false, true, true};
       use_heads(c, 6, 2, 4);
     }},
    {"Qwen3", "qwen3"},
    {"Qwen3Untied", "qwen3",
     [](LlamaConfig& c) {
       c.tie_embeddings = false;
       c.attention_bias = true;
       use_heads(c, 5, 1, 12);
     }},
    {"Gemma3", "gemma3_text"},
    {"Gemma3LinearWaves", "gemma3_text",
     [](LlamaConfig& c) {
       c.rope = {.theta = 300, .type = "linear", .factor = 8};
       c.window = 3;
       c.is_local = {true, true, false};
       use_heads(c, 4, 1, 14);
     }},
};

}  // namespace thimble
