// model_scorer.cpp: picks each target's own log-probability out of the rows that WindowScorer computes.
#include "eval/model_scorer.h"

#include <algorithm>

namespace thimble {

ConstMatrixView ModelScorer::rows_from(std::span<const uint16_t> tokens, const Window& window, int64_t target_begin) {
  auto inputs = tokens.subspan(static_cast<size_t>(window.first_token), static_cast<size_t>(window.input_count()));
  // Target i is predicted at input i, so the row of target_begin is that input's index in the window.
  return scorer_.log_probabilities(inputs, target_begin - window.first_token);
}

void ModelScorer::score(std::span<const uint16_t> tokens, std::span<const Window> windows, std::span<float> nll_out) {
  auto next = nll_out.begin();
  for (const Window& window : windows) {
    ConstMatrixView rows = rows_from(tokens, window, window.target_begin);
    for (int64_t r = 0; r < rows.rows; ++r)
      *next++ = -rows.row(r)[tokens[static_cast<size_t>(window.target_begin + r + 1)]];
  }
}

void ModelScorer::log_probabilities(std::span<const uint16_t> tokens, const Window& window, int64_t target_begin,
                                    MatrixView out) {
  // The same rows as score() computes, so that the audits see the very numbers that are scored.
  ConstMatrixView rows = rows_from(tokens, window, window.target_begin);
  int64_t skipped = target_begin - window.target_begin;
  for (int64_t r = 0; r < out.rows; ++r)
    std::copy(rows.row(skipped + r), rows.row(skipped + r) + rows.cols, out.row(r));
}

}  // namespace thimble
