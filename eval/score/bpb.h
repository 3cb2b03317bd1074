// bpb.h: bits per byte of a model over a token stream, by sliding windows.
//   BPB = (sum of the targets' negative log-likelihoods in nats / ln 2) / bytes of text the targets stand for
// Sums are float64, in target order: no number here depends on threads, batches or devices beyond the scores
// themselves.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "eval/score/loss_blocks.h"
#include "eval/score/windows.h"
#include "eval/text/byte_table.h"
#include "runtime/base/json.h"
#include "runtime/base/progress.h"
#include "runtime/ops/scorer.h"

namespace thimble {

struct EvaluationOptions {
  int64_t stride = 64;                      // 1 .. the scorer's context
  std::optional<int64_t> max_targets = {};  // score only the first ones; the report then says that it is a subset
};

struct BpbReport {
  double loss_nats = 0;       // sum over the targets
  int64_t targets = 0;        // scored
  int64_t total_targets = 0;  // available: tokens - 1
  int64_t text_bytes = 0;     // of the scored targets, > 0
  int64_t context = 0;
  int64_t stride = 0;
  int64_t windows = 0;
  double seconds = 0;              // wall time of the scoring
  double first_batch_seconds = 0;  // of these, until the first batch's scores were there
  LossBlocks blocks = {};          // the same loss and bytes by blocks, where the targets are enough

  double mean_nll_nats() const;
  double bits_per_token() const;
  double bits_per_byte() const;
  bool is_subset() const { return targets < total_targets; }
  // "all 600,000 targets" or "first 250,000 of 600,000 targets (subset)"; part of every rendering.
  std::string scope() const;
};

Json to_json(const BpbReport& report);
// "first 250,000 of 600,000 targets (subset), context 2048, stride 64": what every command says about what it scored.
std::string scored_text(const BpbReport& report);

// How much worse the second model is on the same targets.
struct BpbGap {
  double bits_per_byte = 0;
  std::optional<double> standard_error;  // bits per byte, loss_blocks.h; nullopt where too little text was scored
};

BpbGap gap_between(const BpbReport& first, const BpbReport& second);
// gap_bits_per_byte and gap_standard_error, a number or null.
Json to_json(const BpbGap& gap);
// "0.000912", or "-" where it is not known.
std::string standard_error_text(std::optional<double> standard_error);
// "+0.011197 +- 0.000912", or the gap alone.
std::string to_text(const BpbGap& gap);

struct Evaluation {
  BpbReport report;
  std::vector<Window> windows;  // as used
  std::vector<float> nll_nats;  // (targets)
};

// Scores the windows in batches of the scorer's liking. nll_nats[i] becomes target i's; the windows must cover
// [0, nll_nats.size()) in order. Throws Error naming the target when a score is not a likelihood: not finite, or a
// probability above 1. Returns the seconds until the first batch's scores were there.
double score_stream(Scorer& scorer, std::span<const Token> tokens, std::span<const Window> windows,
                    std::span<float> nll_nats, Progress& progress);

// Sum of the scores in float64, first target first.
double total_loss_nats(std::span<const float> nll_nats);

// Plans, scores and sums. Throws UsageError for fewer than two tokens, tokens outside the vocabulary, a byte table of
// another vocabulary, bad options, or targets without any text.
Evaluation evaluate(Scorer& scorer, std::span<const Token> tokens, const ByteTable& bytes,
                    const EvaluationOptions& options, Progress& progress);

}  // namespace thimble
