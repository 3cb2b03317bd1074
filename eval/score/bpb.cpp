// bpb.cpp: runs an evaluation and renders its report.
#include "eval/score/bpb.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <chrono>
#include <cmath>
#include <numbers>

#include "runtime/base/count_text.h"

namespace thimble {
namespace {

// A probability of 1 may come out a few roundings above it; more is a scorer that does not normalise.
constexpr float kLeastNll = -1e-4F;

// Batches of windows begin small, so that the first scores come soon, and grow to what the scorer prefers.
constexpr size_t kFirstShare = 64, kGrowth = 4;

void check_scores(std::span<const float> nll_nats, int64_t first_target, std::span<const Token> tokens) {
  for (size_t i = 0; i < nll_nats.size(); ++i) {
    if (std::isfinite(nll_nats[i]) && nll_nats[i] >= kLeastNll) continue;
    int64_t target = first_target + static_cast<int64_t>(i);
    throw Error(ExitCode::kBadInput,
                fmt::format("the model scores token {} at position {} with {} nats, must be finite and not negative",
                            tokens[target + 1], target + 1, nll_nats[i]));
  }
}

int64_t target_limit(int64_t available, const std::optional<int64_t>& max_targets) {
  if (max_targets && *max_targets < 1)
    throw UsageError(fmt::format("max_targets is {}, must be at least 1", *max_targets));
  return max_targets ? std::min(available, *max_targets) : available;
}

}  // namespace

double BpbReport::mean_nll_nats() const { return loss_nats / static_cast<double>(targets); }
double BpbReport::bits_per_token() const { return mean_nll_nats() / std::numbers::ln2; }
double BpbReport::bits_per_byte() const { return loss_nats / std::numbers::ln2 / static_cast<double>(text_bytes); }

std::string BpbReport::scope() const {
  if (is_subset()) return fmt::format("first {} of {} (subset)", count_text(targets), counted(total_targets, "target"));
  return targets == 1 ? "the only target" : "all " + counted(targets, "target");
}

Json to_json(const BpbReport& report) {
  return {{"bits_per_byte", report.bits_per_byte()},
          {"blocks", report.blocks.loss_nats.size()},
          {"bits_per_token", report.bits_per_token()},
          {"context", report.context},
          {"is_subset", report.is_subset()},
          {"loss_nats", report.loss_nats},
          {"mean_nll_nats", report.mean_nll_nats()},
          {"scope", report.scope()},
          {"seconds", report.seconds},
          {"stride", report.stride},
          {"targets", report.targets},
          {"text_bytes", report.text_bytes},
          {"total_targets", report.total_targets},
          {"windows", report.windows}};
}

std::string scored_text(const BpbReport& report) {
  return fmt::format("{}, context {}, stride {}", report.scope(), report.context, report.stride);
}

BpbGap gap_between(const BpbReport& first, const BpbReport& second) {
  return {second.bits_per_byte() - first.bits_per_byte(), paired_standard_error(first.blocks, second.blocks)};
}

Json to_json(const BpbGap& gap) {
  return {{"gap_bits_per_byte", gap.bits_per_byte},
          {"gap_standard_error", gap.standard_error ? Json(*gap.standard_error) : Json(nullptr)}};
}

std::string standard_error_text(std::optional<double> standard_error) {
  return standard_error ? fmt::format("{:.6f}", *standard_error) : "-";
}

std::string to_text(const BpbGap& gap) {
  std::string text = fmt::format("{:+.6f}", gap.bits_per_byte);
  return gap.standard_error ? text + " +- " + standard_error_text(gap.standard_error) : text;
}

double score_stream(Scorer& scorer, std::span<const Token> tokens, std::span<const Window> windows,
                    std::span<float> nll_nats, Progress& progress) {
  const auto most_windows = static_cast<size_t>(std::max<int64_t>(1, scorer.preferred_windows()));
  size_t batch_windows = std::max<size_t>(1, most_windows / kFirstShare);
  const auto start = std::chrono::steady_clock::now();
  double first_batch_seconds = 0;
  progress.begin("evaluate", static_cast<int64_t>(windows.size()), "windows");
  for (size_t first = 0; first < windows.size();) {
    std::span<const Window> batch = windows.subspan(first, std::min(batch_windows, windows.size() - first));
    const int64_t begin = batch.front().target_begin;
    std::span<float> out = nll_nats.subspan(begin, batch.back().target_end - begin);
    scorer.score(score_windows(tokens, batch), out);
    check_scores(out, begin, tokens);
    if (first == 0)
      first_batch_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    progress.advance(static_cast<int64_t>(batch.size()));
    first += batch.size();
    batch_windows = std::min(most_windows, kGrowth * batch_windows);
  }
  progress.end();
  return first_batch_seconds;
}

double total_loss_nats(std::span<const float> nll_nats) {
  double sum = 0;
  for (float nll : nll_nats) sum += nll;
  return sum;
}

Evaluation evaluate(Scorer& scorer, std::span<const Token> tokens, const ByteTable& bytes,
                    const EvaluationOptions& options, Progress& progress) {
  if (tokens.size() < 2)
    throw UsageError(fmt::format("{}; an evaluation needs at least 2, since the first is only context",
                                 counted(tokens.size(), "token")));
  if (bytes.vocab_size() != scorer.vocabulary() && !bytes.may_be_padded())
    throw UsageError(fmt::format("the tokenizer has {}, the model a vocabulary of {}",
                                 counted(bytes.vocab_size(), "piece"), scorer.vocabulary()));
  const auto available = static_cast<int64_t>(tokens.size()) - 1;
  const int64_t targets = target_limit(available, options.max_targets);

  Evaluation evaluation;
  evaluation.windows = plan_windows(targets, scorer.context(), options.stride);
  BpbReport& report = evaluation.report;
  report.targets = targets;
  report.total_targets = available;
  report.text_bytes = bytes.bytes_of_targets(tokens.first(targets + 1));
  report.context = scorer.context();
  report.stride = options.stride;
  report.windows = static_cast<int64_t>(evaluation.windows.size());
  if (report.text_bytes == 0)
    throw UsageError(counted(targets, "target") + " of no text at all: bits per byte is undefined");

  evaluation.nll_nats.resize(targets);
  auto start = std::chrono::steady_clock::now();
  report.first_batch_seconds = score_stream(scorer, tokens, evaluation.windows, evaluation.nll_nats, progress);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  report.loss_nats = total_loss_nats(evaluation.nll_nats);
  report.blocks = sum_blocks(evaluation.nll_nats, tokens.first(targets + 1), bytes, options.stride);
  return evaluation;
}

}  // namespace thimble
