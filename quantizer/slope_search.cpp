// slope_search.cpp: regula falsi over real artifacts, by the slope that the size model predicts.
#include "quantizer/slope_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "packer/format.h"

namespace thimble {
namespace {

// How far from the bytes it wants, relative to these, an artifact may be for SlopeFill to do the rest.
constexpr double kNear = 0.002;
// Steps so much longer must take this share of the bytes they were predicted to; else they are no longer at all.
constexpr double kLongerStep = 0.05, kLeastResponse = 0.1;
constexpr double kLeastShrinkage = 0.1;
// A longer step that leaves more than this of a file, although a larger loss is allowed, is not worth it.
constexpr double kTooLittle = 0.99;
// Octaves, at most, beyond what was seen.
constexpr double kLongestMove = 4;
constexpr double kMostReserve = 0.02;
// More bits of a weight tell nothing about it that the checkpoint knew.
constexpr double kMostBits = 16;
// Beyond this no artifact changes any more.
constexpr double kHighestLog2C = 60;

// `wanted`, or near the end of the interval that it is at or beyond.
double inside(double wanted, double low, double high) {
  const double margin = std::min(0.005, (high - low) * 0.02);
  return std::clamp(wanted, low + margin, high - margin);
}

// Fewest bits that the size model has for a weight whose step is kept below sqrt(12 / shrinkage) deviations.
double fewest_bits(double shrinkage) {
  return std::log2(1 + 2 * std::numbers::pi * std::numbers::e * shrinkage / 12) / 2;
}

// The next less shrinkage with which so many bits of a weight may be reached.
double less_shrinkage(double shrinkage, double bits) {
  do {
    shrinkage = shrinkage > kLeastShrinkage ? shrinkage / 4 : 0;
  } while (shrinkage > 0 && fewest_bits(shrinkage) > bits);
  return shrinkage;
}

double size_of(const SlopeOutcome& outcome) { return static_cast<double>(outcome.artifact.size()); }

}  // namespace

SlopeSearch::SlopeSearch(QuantizedModel fixed, const SlopeLayers& layers, const CrossTermSolver* cross_terms,
                         const EncodeOptions& encode, const DistillInput* distill, GapMeter measure_gap,
                         StageTimes& times, Progress& progress)
    : fixed_(std::move(fixed)),
      layers_(layers),
      cross_terms_(cross_terms),
      encode_(encode),
      distill_(distill),
      measure_gap_(std::move(measure_gap)),
      times_(times),
      progress_(progress),
      fill_(layers, encode, cache_, times, progress),
      lowest_log2_c_(layers.size_model().log2_c_for(kMostBits * static_cast<double>(layers.weights()))),
      shrinkage_(layers.options().shrinkage) {}

uint64_t bytes_at(double bits_per_weight, int64_t parameters) {
  return static_cast<uint64_t>(bits_per_weight * static_cast<double>(parameters) / 8);
}

SlopeOutcome SlopeSearch::encode(double log2_c, bool crossed) {
  SlopeOutcome outcome;
  outcome.log2_c = log2_c;
  outcome.shrinkage = shrinkage_;
  outcome.model = fixed_;
  std::vector<SlopeMatrix> matrices =
      crossed && cross_terms_ ? cross_terms_->solve(log2_c, shrinkage_, progress_)
                              : times_.time("solve", [&] { return layers_.solve(log2_c, shrinkage_, progress_); });
  for (SlopeMatrix& solved : matrices) {
    outcome.reports.emplace(solved.tensor.name, std::move(solved.report));
    outcome.model.tensors.push_back(std::move(solved.tensor));
  }
  std::ranges::sort(outcome.model.tensors, {}, &QuantizedTensor::name);
  outcome.artifact = times_.time("encode", [&] { return encode_artifact(outcome.model, encode_, cache_, progress_); });
  if (!crossed) bytes_[log2_c] = size_of(outcome);
  encoded_.push_back({log2_c, outcome.artifact.size()});
  ++encodes_;
  return outcome;
}

uint64_t SlopeSearch::smallest_bytes() {
  if (static_cast<uint64_t>(layers_.weights()) * sizeof(int32_t) > kExpansionFloorBytes) return 0;
  QuantizedModel model = fixed_;
  std::ranges::move(layers_.zeros(kHighestLog2C), std::back_inserter(model.tensors));
  std::ranges::sort(model.tensors, {}, &QuantizedTensor::name);
  return times_.time("encode", [&] { return artifact_bytes(model, encode_, cache_, progress_); });
}

int64_t SlopeSearch::reserve_bytes(const SlopeOutcome& outcome, uint64_t limit) {
  if (!distill_) return 0;
  const int64_t bytes = times_.time("encode", [&] {
    return distill_reserve_bytes(outcome.model, distill_->original.config, outcome.artifact.size(), encode_, cache_,
                                 progress_);
  });
  return std::clamp<int64_t>(bytes, 0, static_cast<int64_t>(kMostReserve * static_cast<double>(limit)));
}

// By what was seen on both sides of `wanted`, else by the slope of the size model and of what was seen.
double SlopeSearch::next_log2_c(double wanted) {
  auto fitting = std::ranges::find_if(bytes_, [&](const auto& point) { return point.second <= wanted; });
  if (fitting != bytes_.begin() && fitting != bytes_.end()) {
    auto [high, high_bytes] = *fitting;
    auto [low, low_bytes] = *std::prev(fitting);
    return inside(low + (high - low) * (low_bytes - wanted) / (low_bytes - high_bytes), low, high);
  }
  const bool is_too_large = fitting == bytes_.end();
  const auto [last, last_bytes] = is_too_large ? *bytes_.rbegin() : *bytes_.begin();
  const SizeModel& model = layers_.size_model();
  double slope = (model.bits(last + 0.5) - model.bits(last - 0.5)) / 8;
  if (bytes_.size() > 1) {
    const auto [other, other_bytes] = is_too_large ? *std::next(bytes_.rbegin()) : *std::next(bytes_.begin());
    slope = std::clamp((last_bytes - other_bytes) / (last - other), 2 * slope, slope / 4);
  }
  if (slope == 0) return is_too_large ? kHighestLog2C : lowest_log2_c_;
  const double end = is_too_large ? last + kLongestMove : last - kLongestMove;
  return std::clamp(inside(last + (wanted - last_bytes) / slope, std::min(last, end), std::max(last, end)),
                    lowest_log2_c_, kHighestLog2C);
}

// Bits for codes of each weight when an artifact has so many bytes.
double SlopeSearch::bits_per_weight(double bytes) const {
  return 8 * (bytes - smallest_bytes_) / static_cast<double>(std::max<int64_t>(1, layers_.weights()));
}

double SlopeSearch::predicted_log2_c(double bytes) const {
  return std::max(lowest_log2_c_, layers_.size_model().log2_c_for(8 * (bytes - smallest_bytes_)));
}

// Encodes until an artifact is near to `wanted` bytes.
SlopeOutcome SlopeSearch::approach(SlopeOutcome nearest, double wanted) {
  auto distance = [&](const SlopeOutcome& outcome) { return std::abs(size_of(outcome) - wanted); };
  double last_log2_c = nearest.log2_c, last_bytes = size_of(nearest);
  while (distance(nearest) > kNear * wanted && encodes_ < kMaxEncodes) {
    const double log2_c = next_log2_c(wanted);
    if (std::abs(log2_c - last_log2_c) < 1e-5) break;
    SlopeOutcome tried = encode(log2_c);
    // Steps that are kept below the weights do not make files smaller for ever.
    const double predicted = (layers_.size_model().bits(last_log2_c) - layers_.size_model().bits(log2_c)) / 8;
    const bool is_stuck = size_of(tried) > wanted * (1 + kNear) && log2_c > last_log2_c + kLongerStep &&
                          last_bytes - size_of(tried) < kLeastResponse * predicted;
    if (is_stuck && shrinkage_ > 0) {
      shrinkage_ = less_shrinkage(shrinkage_, bits_per_weight(wanted));
      bytes_.clear();
      tried = encode(predicted_log2_c(wanted));
    }
    last_log2_c = tried.log2_c;
    last_bytes = size_of(tried);
    if (distance(tried) < distance(nearest)) nearest = std::move(tried);
  }
  return nearest;
}

// The outcome with cross terms, which take other bytes: once more where SlopeFill could not make up for that.
SlopeOutcome SlopeSearch::cross(SlopeOutcome outcome, double wanted) {
  if (!cross_terms_) return outcome;
  SlopeOutcome crossed = encode(outcome.log2_c, true);
  const double missing = wanted - size_of(crossed);
  if (std::abs(missing) <= kNear * wanted) return crossed;
  const SizeModel& model = layers_.size_model();
  const double slope = (model.bits(crossed.log2_c + 0.5) - model.bits(crossed.log2_c - 0.5)) / 8;
  return encode(std::clamp(crossed.log2_c + missing / slope, lowest_log2_c_, kHighestLog2C), true);
}

// Distils the outcome and fills the limit. Stays as it was but for the latter where that does not help.
void SlopeSearch::tune(std::optional<uint64_t> limit, SlopeOutcome& outcome) {
  if (distill_) {
    Distilled distilled = times_.time("distill", [&] { return distill(*distill_, outcome.model, progress_); });
    DistillReport& report = distilled.report;
    if (report.is_kept) {
      const RowChanges changes = row_changes(outcome.model, distilled.model);
      SlopeOutcome tuned = outcome;
      tuned.model = std::move(distilled.model);
      tuned.artifact = times_.time("encode", [&] { return encode_artifact(tuned.model, encode_, cache_, progress_); });
      const bool is_changed = limit && fill(*limit, changes, tuned);
      if (is_changed)
        report.divergence_after =
            times_.time("distill", [&] { return held_out_divergence(*distill_, tuned.model, progress_); });
      report.is_kept =
          report.divergence_after < report.divergence_before && (!limit || tuned.artifact.size() <= *limit);
      if (report.is_kept) outcome = std::move(tuned);
    }
    outcome.distill = report;
    if (report.is_kept) return;
  }
  if (limit) fill(*limit, {}, outcome);
}

// More bytes are no use where steps are as short as they may be.
bool SlopeSearch::fill(uint64_t limit, const RowChanges& changes, SlopeOutcome& outcome) {
  if (outcome.log2_c <= lowest_log2_c_ && outcome.artifact.size() <= limit) return false;
  return fill_.run(limit, changes, outcome);
}

SlopeOutcome SlopeSearch::fit_bytes(uint64_t limit) {
  const double aim = (1 + SlopeFill::kFill) / 2 * static_cast<double>(limit);
  auto refuse = [&](uint64_t bytes) {
    throw CheckError(fmt::format("the budget cannot be met: the smallest artifact takes {}, it may take {}",
                                 bytes_text(bytes), bytes_text(limit)));
  };
  const uint64_t smallest = smallest_bytes();
  if (smallest > limit) refuse(smallest);
  smallest_bytes_ = static_cast<double>(smallest);
  if (fewest_bits(shrinkage_) > bits_per_weight(aim)) shrinkage_ = less_shrinkage(shrinkage_, bits_per_weight(aim));
  SlopeOutcome outcome = encode(predicted_log2_c(aim));
  const auto reserve = static_cast<double>(reserve_bytes(outcome, limit));
  outcome = approach(std::move(outcome), std::max(aim - reserve, (aim + smallest_bytes_) / 2));
  outcome = cross(std::move(outcome), std::max(aim - reserve, (aim + smallest_bytes_) / 2));
  tune(limit, outcome);
  if (outcome.artifact.size() > limit) {
    // Nothing near the limit was found: the end of what there is to find.
    shrinkage_ = 0;
    outcome = encode(kHighestLog2C);
    if (outcome.artifact.size() > limit) refuse(outcome.artifact.size());
  }
  return outcome;
}

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
SlopeOutcome SlopeSearch::fit_gap(double gap, double first_log2_c) {
  constexpr double kNearOctaves = 0.12, kUsualGain = 0.93;  // of a gap; gap after distillation over that before
  constexpr double kLeastMove = 0.01;
  const double aim = (1 + kCloseGap) / 2 * gap;
  double gain = distill_ ? kUsualGain : 1, smallest = INFINITY;
  std::map<double, double> gaps;  // before distillation, by log2_c
  std::optional<SlopeOutcome> best;
  auto consider = [&](SlopeOutcome tried, double found) {
    smallest = std::min(smallest, found);
    if (found <= gap && (!best || tried.artifact.size() < best->artifact.size())) best = std::move(tried);
  };
  bool tunes = distill_ != nullptr;  // until it does not help, which at this gap it is not going to
  double log2_c = first_log2_c, move = 0, last_bytes = INFINITY;
  while (encodes_ < kMaxEncodes) {
    SlopeOutcome tried = encode(log2_c, true);
    const double found = gaps[log2_c] = measure_gap_(tried.model), bytes = size_of(tried);
    if (move > kLongerStep && bytes > kTooLittle * last_bytes && shrinkage_ > 0) {
      // Steps that are kept below the weights do not make files smaller for ever.
      shrinkage_ = less_shrinkage(shrinkage_, INFINITY);
      gaps.clear();
      log2_c -= move;
      move = 0;
      last_bytes = INFINITY;
      continue;
    }
    double met = found;

    const bool is_near =
        std::abs(std::log2(found * gain / aim)) < kNearOctaves || (move != 0 && std::abs(move) < kLeastMove);
    if (tunes && (is_near || encodes_ == kMaxEncodes)) {
      tune(std::nullopt, tried);
      tunes = tried.distill->is_kept;
      if (tunes) met = measure_gap_(tried.model);
      gain = std::clamp(met / found, 0.5, 2.0);
    }
    consider(std::move(tried), met);
    if (met <= gap && met >= kCloseGap * gap) break;
    last_bytes = bytes;
    const double next = next_log2_c_of_gap(gaps, aim / gain);
    if (gaps.contains(next)) break;
    move = next - log2_c;
    log2_c = next;
  }
  if (!best)
    throw CheckError(fmt::format(
        "the gap cannot be met: the smallest reached is {:.6f} bits per byte, {:.6f} asked for", smallest, gap));
  if (distill_ && !best->distill) {
    SlopeOutcome tuned = *best;
    tune(std::nullopt, tuned);
    if (!tuned.distill->is_kept || measure_gap_(tuned.model) <= gap) return tuned;
    best->distill = tuned.distill;
    best->distill->is_kept = false;
  }
  return std::move(*best);
}

SlopeOutcome SlopeSearch::run(const SlopeTarget& target) {
  const double start = layers_.size_model().log2_c_for(kDefaultBits * static_cast<double>(layers_.weights()));
  const std::optional<uint64_t>& limit = target.limit_bytes;
  SlopeOutcome outcome;
  if (target.log2_c || !(limit || target.bpb_gap)) {
    outcome = encode(target.log2_c.value_or(start), true);
    tune(std::nullopt, outcome);
  } else {
    outcome = target.bpb_gap ? fit_gap(*target.bpb_gap, start) : fit_bytes(*limit);
  }
  outcome.encodes = encodes_;
  outcome.encoded = encoded_;
  if (limit && outcome.artifact.size() > *limit)
    throw CheckError(fmt::format("{} takes {}, the artifact may take {}",
                                 target.bpb_gap ? fmt::format("a gap of {:.6f} bits per byte", *target.bpb_gap)
                                                : fmt::format("a step of 2^{}", *target.log2_c),
                                 bytes_text(outcome.artifact.size()), bytes_text(*limit)));
  return outcome;
}

}  // namespace thimble
