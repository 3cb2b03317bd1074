// golf30m_shape.h: the 30M-parameter golf-gpt that benchmarks run, with random weights.
#pragma once

#include "tests/runtime/families/golf/random_model.h"

namespace thimble {

inline GolfConfig golf30m_shape() {
  GolfConfig c = small_golf_config();
  c.vocab_size = 1024;
  c.num_layers = 11;
  c.model_dim = 512;
  c.num_heads = 8;
  c.num_kv_heads = 4;
  c.mlp_mult = 3.5;
  c.rope_dims = 16;
  c.rope_train_seq_len = 1024;
  c.xsa_last_n = 11;
  c.bigram_vocab_size = 3072;
  c.bigram_dim = 112;
  c.skip_gates = false;
  c.ve_layers = {9, 10};
  c.ve_dim = 128;
  return c;
}

inline std::shared_ptr<const Weights> random_golf30m() { return random_golf_weights(golf30m_shape()); }

}  // namespace thimble
