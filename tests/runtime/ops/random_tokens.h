// random_tokens.h: token ids without meaning, the same on every machine.
#pragma once

#include <vector>

#include "runtime/base/random.h"
#include "runtime/ops/token_sequences.h"

namespace thimble {

inline std::vector<Token> random_tokens(int64_t count, int64_t vocab_size, uint64_t seed = 1) {
  std::vector<Token> tokens;
  for (int64_t i = 0; i < count; ++i) {
    double uniform = uniform_at(seed, 0x746f6b656e73, static_cast<uint64_t>(i));
    tokens.push_back(static_cast<Token>(uniform * static_cast<double>(vocab_size)));
  }
  return tokens;
}

}  // namespace thimble
