// token_sequences.h: token ids, and sequences of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace thimble {

using Token = int32_t;

constexpr int64_t kMostTokens = int64_t{1} << 20;  // of a vocabulary

// Tokens of `count` sequences of equal length, one after another.
struct TokenSequences {
  int64_t count = 0;
  int64_t length = 0;
  std::vector<Token> tokens;  // (count, length)

  std::span<const Token> sequence(int64_t i) const {
    return std::span(tokens).subspan(static_cast<size_t>(i * length), static_cast<size_t>(length));
  }
  // The first `most` of them, or all.
  TokenSequences first(int64_t most) const {
    const int64_t chosen = std::min(most, count);
    return {chosen, length, {tokens.begin(), tokens.begin() + chosen * length}};
  }
};

}  // namespace thimble
