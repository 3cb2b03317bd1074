// slope_gap_search.cpp: SlopeSearch for a gap in bits per byte: by the slope of what was measured, and by bytes where
// that does not come near.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "quantizer/methods/slope/slope_search.h"

namespace thimble {
namespace {

// Of a gap: what is found with less of it is not the smallest artifact yet.
constexpr double kLooseGap = 0.7;
// Bits per byte beyond which a model has lost most of what it knew: the smallest artifact may do.
constexpr double kHugeGap = 0.5;

}  // namespace

double SlopeSearch::next_log2_c_of_gap(const std::map<double, double>& gaps, double wanted) const {
  auto above = std::ranges::find_if(gaps, [&](const auto& point) { return point.second > wanted; });
  if (above != gaps.begin() && above != gaps.end()) {
    const auto [low, low_gap] = *std::prev(above);
    const auto [high, high_gap] = *above;
    const double share = low_gap > 0 ? std::log(wanted / low_gap) / std::log(high_gap / low_gap) : 0.5;
    return inside(low + (high - low) * share, low, high);
  }
  const bool is_above = above == gaps.end();
  const auto [last, gap] = is_above ? *gaps.rbegin() : *gaps.begin();
  double octaves = 2;  // of loss per octave of c at high rates, less where steps are kept below the weights
  if (gaps.size() > 1) {
    const auto [other, other_gap] = is_above ? *std::next(gaps.rbegin()) : *std::next(gaps.begin());
    if (gap > 0 && other_gap > 0) octaves = std::clamp(std::log2(gap / other_gap) / (last - other), 0.5, 4.0);
  }
  const double move = gap > 0 && wanted > 0 ? std::log2(wanted / gap) / octaves : wanted > gap ? 1 : -1;
  return std::clamp(last + std::clamp(move, -kLongestMove, kLongestMove), lowest_log2_c_, kHighestLog2C);
}

// Distillation takes longer than all else: only what it is going to bring near to the gap is distilled.
std::optional<SlopeSearch::MetGap> SlopeSearch::follow_gap(double gap, double first_log2_c, double& smallest_gap) {
  constexpr double kNearOctaves = 0.12, kUsualGain = 0.93;  // of a gap; gap after distillation over that before
  constexpr double kLeastMove = 0.01;
  const double aim = (1 + kCloseGap) / 2 * gap;
  double gain = teacher_ ? kUsualGain : 1;
  std::map<double, double> gaps;  // before distillation, by log2_c
  std::optional<MetGap> best;
  auto consider = [&](SlopeOutcome tried, double found) {
    smallest_gap = std::min(smallest_gap, found);
    if (found <= gap && (!best || tried.bytes < best->outcome.bytes)) best = {std::move(tried), found};
  };
  bool tunes = teacher_ != nullptr;  // until it does not help, which at this gap it is not going to
  double log2_c = first_log2_c, move = 0;
  while (state_.encodes < kMaxEncodes) {
    SlopeOutcome tried = encode(log2_c, true);
    const double found = gaps[log2_c] = measure_gap_(tried.model);
    double met = found;
    const bool is_near =
        std::abs(std::log2(found * gain / aim)) < kNearOctaves || (move != 0 && std::abs(move) < kLeastMove);
    if (tunes && (is_near || state_.encodes == kMaxEncodes)) {
      tune(std::nullopt, search_encode_, tried);
      tunes = tried.is_tuned();
      if (tunes) met = measure_gap_(tried.model);
      gain = std::clamp(met / found, 0.5, 2.0);
    }
    consider(std::move(tried), met);
    if (met <= gap && met >= kCloseGap * gap) break;
    const double next = next_log2_c_of_gap(gaps, aim / gain);
    if (gaps.contains(next)) break;
    move = next - log2_c;
    log2_c = next;
  }
  return best;
}

// Where gaps leap with the common step, artifacts of fewer and fewer bytes than the best that meets the gap, down to
// the smallest of all.
SlopeOutcome SlopeSearch::halve_bytes(double gap, SlopeOutcome best) {
  SlopeOutcome smallest = zeros();
  finish(smallest);
  if (measure_gap_(smallest.model) <= gap) return smallest;
  auto low = static_cast<double>(smallest.bytes);  // does not meet the gap
  for (int i = 0; i < kGapHalvings; ++i) {
    const auto high = static_cast<double>(best.bytes);
    const auto limit = static_cast<uint64_t>(std::sqrt(low * high));
    if (static_cast<double>(limit) <= low) break;
    SlopeOutcome tried = best;
    tried.distill.reset();
    tried.learning.reset();
    bridge_limit(tools_, limit, {}, tried);
    const double found = tried.bytes <= limit ? measure_gap_(tried.model) : INFINITY;
    if (found <= gap)
      best = std::move(tried);
    else
      low = static_cast<double>(limit);
    if (found <= gap && found >= kCloseGap * gap) break;
  }
  return best;
}

SlopeOutcome SlopeSearch::fit_gap(double gap, double first_log2_c) {
  if (gap >= kHugeGap && can_hold_zeros()) {
    SlopeOutcome smallest = zeros();
    finish(smallest);
    if (measure_gap_(smallest.model) <= gap) return smallest;
    bytes_.clear();
  }
  double smallest_gap = INFINITY;
  std::optional<MetGap> best = follow_gap(gap, first_log2_c, smallest_gap);
  if (!best)
    throw CheckError(fmt::format(
        "the gap cannot be met: the smallest reached is {:.6f} bits per byte, {:.6f} asked for", smallest_gap, gap));
  SlopeOutcome& outcome = best->outcome;
  finish(outcome);
  if (best->gap < kLooseGap * gap && can_hold_zeros()) return halve_bytes(gap, std::move(outcome));
  if (teacher_ && !outcome.distill && !outcome.learning) {
    SlopeOutcome tuned = outcome;
    tune(std::nullopt, tools_.encode, tuned);
    if (!tuned.is_tuned() || measure_gap_(tuned.model) <= gap) return tuned;
    outcome.distill = tuned.distill;
    outcome.learning = tuned.learning;
    if (outcome.distill) outcome.distill->is_kept = false;
    if (outcome.learning) outcome.learning->is_kept = false;
  }
  return std::move(outcome);
}

}  // namespace thimble
