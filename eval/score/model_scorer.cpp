// model_scorer.cpp: an evaluation's windows, which name places of a stream, as the spans that LanguageModel reads.
#include "eval/score/model_scorer.h"

#include <algorithm>
#include <vector>

namespace thimble {
namespace {

ScoreWindow spans_of(std::span<const uint16_t> tokens, const Window& window) {
  // Target i is token i + 1, predicted at input i.
  return {tokens.subspan(static_cast<size_t>(window.first_token), static_cast<size_t>(window.input_count())),
          tokens.subspan(static_cast<size_t>(window.target_begin + 1), static_cast<size_t>(window.target_count()))};
}

}  // namespace

void ModelScorer::score(std::span<const uint16_t> tokens, std::span<const Window> windows, std::span<float> nll_out) {
  std::vector<ScoreWindow> spans;
  for (const Window& window : windows) spans.push_back(spans_of(tokens, window));
  model_.score(spans, nll_out);
}

void ModelScorer::log_probabilities(std::span<const uint16_t> tokens, const Window& window, int64_t target_begin,
                                    MatrixView out) {
  // The same rows as score() computes, so that the audits see the very numbers that are scored.
  Matrix rows(window.target_count(), vocab_size());
  model_.log_probabilities(spans_of(tokens, window).inputs, rows);
  int64_t skipped = target_begin - window.target_begin;
  for (int64_t r = 0; r < out.rows; ++r)
    std::copy(rows.row(skipped + r), rows.row(skipped + r) + rows.cols(), out.row(r));
}

}  // namespace thimble
