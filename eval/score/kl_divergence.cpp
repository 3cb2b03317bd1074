// kl_divergence.cpp: both models' distributions some rows at a time, as logit_pieces.h cuts them.
#include "eval/score/kl_divergence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "eval/score/loss_blocks.h"
#include "runtime/base/count_text.h"
#include "runtime/base/error.h"
#include "runtime/base/parallel.h"
#include "runtime/ops/logit_pieces.h"

namespace thimble {
namespace {

// How far below 0 roundings of log-probabilities in float32 may bring a sum.
constexpr double kLeastDivergence = -1e-4;

// KL of two rows of log-probabilities. A token that the first rules out counts nothing.
double divergence_of(std::span<const float> first, std::span<const float> second) {
  double sum = 0;
  for (size_t v = 0; v < first.size(); ++v) {
    const double p = std::exp(static_cast<double>(first[v]));
    if (p > 0) sum += p * (static_cast<double>(first[v]) - static_cast<double>(second[v]));
  }
  return sum;
}

}  // namespace

Divergences divergences(Scorer& first, Scorer& second, std::span<const Token> tokens, std::span<const Window> windows,
                        Progress& progress) {
  const int64_t vocabulary = first.vocabulary();
  if (second.vocabulary() != vocabulary)
    throw UsageError(fmt::format("a divergence is between models of one vocabulary, these have {} and {} tokens",
                                 count_text(vocabulary), count_text(second.vocabulary())));
  const size_t targets = windows.empty() ? 0 : static_cast<size_t>(windows.back().target_end);
  Divergences found{std::vector<float>(targets), std::vector<uint8_t>(targets)};
  Matrix first_rows, second_rows;
  progress.begin("divergence", static_cast<int64_t>(windows.size()), "windows");
  for (const Window& window : windows) {
    const std::span<const Token> inputs = score_window(tokens, window).inputs;
    for_each_logit_piece(window.target_count(), vocabulary, [&](int64_t begin, int64_t rows) {
      first_rows.resize(rows, vocabulary);
      second_rows.resize(rows, vocabulary);
      first.log_probabilities(inputs, window.target_count(), begin, first_rows);
      second.log_probabilities(inputs, window.target_count(), begin, second_rows);
      parallel_for(rows, [&](int64_t r) {
        const std::span p(first_rows.row(r), static_cast<size_t>(vocabulary));
        const std::span q(second_rows.row(r), static_cast<size_t>(vocabulary));
        const auto target = static_cast<size_t>(window.target_begin + begin + r);
        found.nats[target] = static_cast<float>(divergence_of(p, q));
        found.same_top[target] = std::ranges::max_element(p) - p.begin() == std::ranges::max_element(q) - q.begin();
      });
    });
    progress.advance(1);
  }
  progress.end();
  for (size_t target = 0; target < targets; ++target) {
    float& nats = found.nats[target];
    if (!std::isfinite(nats) || nats < kLeastDivergence)
      throw Error(
          ExitCode::kBadInput,
          fmt::format("the divergence at position {} is {} nats, must be finite and not negative", target + 1, nats));
    nats = std::max(nats, 0.0F);
  }
  return found;
}

DivergenceReport summarize(const Divergences& found, std::span<const Token> tokens, const ByteTable& bytes,
                           int64_t stride) {
  DivergenceReport report;
  report.targets = static_cast<int64_t>(found.nats.size());
  const auto targets = static_cast<double>(report.targets);
  const double sum = std::accumulate(found.nats.begin(), found.nats.end(), 0.0);
  report.mean_nats = sum / targets;
  report.bits_per_byte = sum / std::numbers::ln2 / static_cast<double>(bytes.bytes_of_targets(tokens));
  const LossBlocks blocks = sum_blocks(found.nats, tokens, bytes, stride);
  report.standard_error =
      paired_standard_error({std::vector<double>(blocks.loss_nats.size()), blocks.text_bytes}, blocks);
  std::vector<float> sorted = found.nats;
  std::ranges::sort(sorted);
  report.percentile_99_nats = sorted[(sorted.size() * 99 + 99) / 100 - 1];
  report.largest_nats = sorted.back();
  report.same_top = static_cast<double>(std::ranges::count(found.same_top, 1)) / targets;
  return report;
}

Json to_json(const DivergenceReport& report) {
  return {{"bits_per_byte", report.bits_per_byte},
          {"largest_nats", report.largest_nats},
          {"mean_nats", report.mean_nats},
          {"percentile_99_nats", report.percentile_99_nats},
          {"same_top", report.same_top},
          {"standard_error", report.standard_error ? Json(*report.standard_error) : Json(nullptr)},
          {"targets", report.targets}};
}

}  // namespace thimble
