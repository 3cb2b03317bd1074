// windows.h: which targets are scored in which context: the sliding windows of an evaluation.
// Target i (0 <= i < N) is token i + 1 of a stream of N + 1 tokens, predicted from the tokens before it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/ops/scorer.h"

namespace thimble {

// One forward pass: inputs tokens[first_token, target_end), of which only the last targets are scored.
// first_token <= target_begin < target_end; target_end - first_token is at most the context length.
struct Window {
  int64_t first_token = 0;
  int64_t target_begin = 0;
  int64_t target_end = 0;

  int64_t input_count() const { return target_end - first_token; }
  int64_t target_count() const { return target_end - target_begin; }
  bool operator==(const Window&) const = default;
};

// What a scorer is handed of `tokens`, the whole stream.
ScoreWindow score_window(std::span<const Token> tokens, const Window& window);
std::vector<ScoreWindow> score_windows(std::span<const Token> tokens, std::span<const Window> windows);

// Windows over `targets` targets: the first scores up to `context` targets, each later one starts `stride` tokens
// further and scores only what no window before it has scored, so every target is scored exactly once.
// Throws UsageError unless targets >= 0, context >= 1 and 1 <= stride <= context.
std::vector<Window> plan_windows(int64_t targets, int64_t context, int64_t stride);

}  // namespace thimble
