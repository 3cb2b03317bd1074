// kl_divergence.h: how far a model's predictions are from another's on the same text, whatever the text itself says:
//   KL(p || q) = sum over v of p(v) (ln p(v) - ln q(v))
// at each target, p the first model's distribution and q the second's in the same context. It weighs every token that
// the first model thinks possible, so it tells models apart that one text's losses do not.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "eval/score/windows.h"
#include "eval/text/byte_table.h"
#include "runtime/base/json.h"
#include "runtime/base/progress.h"
#include "runtime/ops/scorer.h"

namespace thimble {

struct DivergenceReport {
  int64_t targets = 0;
  double mean_nats = 0;                       // per target
  double bits_per_byte = 0;                   // the sum in bits over the bytes of the targets, as BPB counts them
  std::optional<double> standard_error = {};  // of bits_per_byte, as loss_blocks.h has it
  double percentile_99_nats = 0;              // 99 of 100 targets have no more
  double largest_nats = 0;
  double same_top = 0;  // share of targets at which both find the same token the likeliest
};

Json to_json(const DivergenceReport& report);

// Of each target. divergence[i] in nats, at least 0; same_top[i]: 1 or 0.
struct Divergences {
  std::vector<float> nats;
  std::vector<uint8_t> same_top;
};

// At all targets of the windows, which must cover them in order from 0. Scorers of one vocabulary, else a UsageError.
// Throws an Error naming the target where a distribution is none, or where the second model rules out what the first
// thinks possible, so that the divergence is infinite.
Divergences divergences(Scorer& first, Scorer& second, std::span<const Token> tokens, std::span<const Window> windows,
                        Progress& progress);

// `tokens`: one more than the targets; `stride`: of the windows.
DivergenceReport summarize(const Divergences& found, std::span<const Token> tokens, const ByteTable& bytes,
                           int64_t stride);

}  // namespace thimble
