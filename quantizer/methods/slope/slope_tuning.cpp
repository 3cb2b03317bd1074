// slope_tuning.cpp: what becomes of an artifact that a search has found: learned codes, else tuned gains, each kept
// where the model is closer to the original on sequences held out, and the limit filled.
#include <algorithm>

#include "quantizer/methods/slope/slope_search.h"

namespace thimble {
namespace {

// Encodes of learned codes until they fill the limit, and what a bit weighs in the first of them and at most: from
// half a level squared on, codes that learning has not moved change for their bits alone.
constexpr int kMostCodeFits = 16;
constexpr double kFirstRateWeight = 0.01, kMostRateWeight = 0.04;

// Adds what became of the next block. Of what is not kept, only where nothing is.
void add_block(const LearnReport& next, LearnReport& all) {
  all.steps += next.steps;
  if (all.is_kept && !next.is_kept) return;
  all.changed_codes = (all.is_kept == next.is_kept ? all.changed_codes : 0) + next.changed_codes;
  all.rate_weight = next.rate_weight;
  all.divergence_after = next.divergence_after;
  all.is_kept = next.is_kept;
}

}  // namespace

// Makes of the latents codes of as many bytes as the limit has room for, with the steps that the outcome has, or near
// to it. Returns what a bit weighs then; the outcome may stay below the limit where even bits that weigh nothing do.
double SlopeSearch::fit_codes(const LearnedCodes& learned, uint64_t limit, const EncodeOptions& encode,
                              SlopeOutcome& outcome) {
  auto with = [&](double rate_weight) {
    SlopeOutcome made = outcome;
    made.model = learned.codes_in(std::move(made.model), rate_weight);
    made.bytes = tools_.encoder.bytes(made.model, encode, tools_.progress);
    return made;
  };
  outcome = with(0);
  if (outcome.bytes <= limit) return 0;
  const double aim = (1 + kFill) / 2 * static_cast<double>(limit);
  double low = 0, low_bytes = static_cast<double>(outcome.bytes);  // too many bytes
  double high = 0, high_bytes = 0;                                 // few enough
  std::optional<SlopeOutcome> best;
  for (int i = 0; i < kMostCodeFits && !(best && is_filled(best->bytes, limit)); ++i) {
    // Between the two where both are known, not too near to either.
    const double between = best ? std::clamp((low_bytes - aim) / (low_bytes - high_bytes), 0.1, 0.9) : 0;
    const double tried = best ? low + between * (high - low) : low == 0 ? kFirstRateWeight : 4 * low;
    if (tried > kMostRateWeight) return low;
    SlopeOutcome made = with(tried);
    const auto bytes = static_cast<double>(made.bytes);
    if (made.bytes > limit) {
      low = tried;
      low_bytes = bytes;
      if (!best) outcome = std::move(made);
    } else {
      high = tried;
      high_bytes = bytes;
      best = std::move(made);
    }
  }
  outcome = std::move(*best);
  return high;
}

// The outcome, of a divergence that is known, with learned codes of one block, within the limit and filled where the
// codes allow it.
SlopeOutcome SlopeSearch::with_learned(size_t block, double divergence, std::optional<uint64_t> limit,
                                       const EncodeOptions& encode, const SlopeOutcome& outcome) {
  const LearnedCodes learned = teacher_->learn(outcome.model, divergence, block, tools_.progress);
  LearnReport report{{learned.steps, learned.sequences, learned.held_out}};
  report.divergence_before = divergence;
  report.data_share = learned.data_share;
  report.temperature = learned.temperature;
  SlopeOutcome changed = outcome;
  changed.model = with_rounded_small(with_gains(std::move(changed.model), learned.gains, learned.head),
                                     tools_.small.at(outcome.log2_c));
  const RowChanges changes = row_changes(outcome.model, changed.model);
  if (limit) {
    report.rate_weight = fit_codes(learned, *limit, encode, changed);
    fill(*limit, changes, changed);
  } else {
    changed.model = learned.codes_in(std::move(changed.model), 0);
    changed.bytes = tools_.encoder.bytes(changed.model, encode, tools_.progress);
  }
  report.changed_codes = learned.changed_share(outcome.model, changed.model);
  changed.learning = report;
  return changed;
}

// Learns the outcome's codes, block by block, and fills the limit. What does not help goes again; false, and the
// outcome stays as it was, where nothing does.
bool SlopeSearch::learn(std::optional<uint64_t> limit, const EncodeOptions& encode, SlopeOutcome& outcome) {
  if (!learns()) return false;
  return tools_.times.time("learn", [&] {
    std::optional<LearnReport> all;
    for (size_t block = 0; block < teacher_->block_count(); ++block) {
      const double before = all ? all->divergence() : teacher_->divergence(outcome.model, tools_.progress);
      SlopeOutcome changed = with_learned(block, before, limit, encode, outcome);
      LearnReport report = *changed.learning;
      report.divergence_after = teacher_->divergence(changed.model, tools_.progress);
      report.is_kept = report.is_closer() && (!limit || changed.bytes <= *limit);
      if (report.is_kept) outcome = std::move(changed);
      if (all)
        add_block(report, *all);
      else
        all = report;
    }
    outcome.learning = all;
    return all && all->is_kept;
  });
}

// Distils the outcome and fills the limit. False, and the outcome stays as it was, where that does not help.
bool SlopeSearch::distill(std::optional<uint64_t> limit, const EncodeOptions& encode, SlopeOutcome& outcome) {
  if (!distills()) return false;
  Distilled distilled = tools_.times.time(
      "distill", [&] { return teacher_->distill(outcome.model, tools_.small.at(outcome.log2_c), tools_.progress); });
  DistillReport& report = distilled.report;
  if (report.is_kept) {
    const RowChanges changes = row_changes(outcome.model, distilled.model);
    SlopeOutcome tuned = outcome;
    tuned.model = std::move(distilled.model);
    tuned.bytes = tools_.encoder.bytes(tuned.model, encode, tools_.progress);
    if (limit && fill(*limit, changes, tuned))
      report.divergence_after =
          tools_.times.time("distill", [&] { return teacher_->divergence(tuned.model, tools_.progress); });
    report.is_kept = report.is_closer() && (!limit || tuned.bytes <= *limit);
    if (report.is_kept) outcome = std::move(tuned);
  }
  outcome.distill = report;
  return report.is_kept;
}

// Learns the codes of the outcome, encoded with `encode`, and small tensors with them, or else distils it, and fills
// the limit. Stays as it was but for the latter where these do not help.
void SlopeSearch::tune(std::optional<uint64_t> limit, const EncodeOptions& encode, SlopeOutcome& outcome) {
  if (learn(limit, encode, outcome) || distill(limit, encode, outcome)) return;
  if (limit) fill(*limit, {}, outcome);
}

}  // namespace thimble
