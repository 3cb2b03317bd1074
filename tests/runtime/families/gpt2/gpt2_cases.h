// gpt2_cases.h: shapes of GPT-2, one small case each.
#pragma once

#include "tests/runtime/families/gpt2/random_gpt2.h"

namespace thimble {

struct Gpt2Case {
  const char* name;
  bool tied;
  int64_t heads, layers;
  int64_t window = 23, context = 23;
};

inline Gpt2Config config_of(const Gpt2Case& gpt2) {
  Gpt2Config config = small_gpt2_config();
  config.tie_embeddings = gpt2.tied;
  config.num_heads = gpt2.heads;
  config.num_layers = gpt2.layers;
  return config;
}

inline const Gpt2Case kGpt2Cases[] = {
    {"Tied", true, 4, 3},
    {"UntiedHead", false, 4, 3},
    {"OneHead", true, 1, 2},
    {"OneLayer", true, 20, 1},
    {"OneToken", true, 4, 3, 1, 1},
    {"TwoTokens", true, 4, 3, 2, 2},
    {"ShortWindow", true, 4, 3, 9, 40},
};

}  // namespace thimble
