// windows.cpp: the sliding-window plan. A window never rescores a target, the tail included: scoring the last
// targets again in every trailing window would count the best-informed positions many times.
#include "eval/score/windows.h"

#include <algorithm>
#include <string>

#include "runtime/base/error.h"

namespace thimble {

// Target i is token i + 1, predicted at input i.
ScoreWindow score_window(std::span<const Token> tokens, const Window& window) {
  return {tokens.subspan(static_cast<size_t>(window.first_token), static_cast<size_t>(window.input_count())),
          tokens.subspan(static_cast<size_t>(window.target_begin + 1), static_cast<size_t>(window.target_count()))};
}

std::vector<ScoreWindow> score_windows(std::span<const Token> tokens, std::span<const Window> windows) {
  std::vector<ScoreWindow> all;
  for (const Window& window : windows) all.push_back(score_window(tokens, window));
  return all;
}

std::vector<Window> plan_windows(int64_t targets, int64_t context, int64_t stride) {
  if (targets < 0) throw UsageError("number of targets " + std::to_string(targets) + ", must not be negative");
  if (context < 1) throw UsageError("context length " + std::to_string(context) + ", must be at least 1");
  if (stride < 1 || stride > context)
    throw UsageError("stride " + std::to_string(stride) + ", must lie between 1 and the context length " +
                     std::to_string(context));
  std::vector<Window> windows;
  int64_t scored = 0;
  for (int64_t first = 0; scored < targets; first += stride) {
    // No overflow for any context: `first` never passes `targets`.
    int64_t end = context < targets - first ? first + context : targets;
    windows.push_back({first, scored, end});
    scored = end;
  }
  return windows;
}

}  // namespace thimble
