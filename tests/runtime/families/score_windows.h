// score_windows.h: windows for tests of scorers.
#pragma once

#include <vector>

#include "runtime/ops/scorer.h"

namespace thimble {

// Of every length up to `context`, with one, some and all inputs scored. `tokens`: 3 * context.
inline std::vector<ScoreWindow> windows_of_every_length(std::span<const Token> tokens, int64_t context) {
  std::vector<ScoreWindow> all;
  for (size_t length = 1; length <= static_cast<size_t>(context); ++length)
    for (size_t scored : {size_t{1}, (length + 1) / 2, length})
      all.push_back({tokens.subspan(length, length), tokens.subspan(2 * length + 1 - scored, scored)});
  return all;
}

inline std::vector<float> scores_of(Scorer& scorer, std::span<const ScoreWindow> windows) {
  size_t count = 0;
  for (const ScoreWindow& window : windows) count += window.targets.size();
  std::vector<float> nll(count, -1.0f);
  scorer.score(windows, nll);
  return nll;
}

}  // namespace thimble
