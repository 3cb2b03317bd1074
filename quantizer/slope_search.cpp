// slope_search.cpp: bisection over real artifacts, by the slope that the size model predicts.
#include "quantizer/slope_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace thimble {
namespace {

// Where the search aims within [kFill, 1] of the limit.
constexpr double kAim = 0.9996;
// A longer step that leaves more than this of a file is not followed by yet a longer one.
constexpr double kTooLittle = 0.99;
constexpr double kLeastShrinkage = 0.1;
// What is added later may take a little less than was reserved.
constexpr double kFillBeforeMore = 0.9995, kAimBeforeMore = 0.9998;
constexpr double kMostReserve = 0.02;
// Beyond these no artifact changes any more.
constexpr double kLowestLog2C = -60, kHighestLog2C = 60;

// The interval that the answer lies in: `low` gives too many bytes (or a gap that is small enough), `high` too few.
struct Bracket {
  double low = kLowestLog2C, high = kHighestLog2C;

  // `wanted`, or the middle when that is not inside.
  double inside(double wanted) const {
    double margin = (high - low) * 0.02;
    if (wanted > low + margin && wanted < high - margin) return wanted;
    return std::clamp(wanted, low + margin, high - margin);
  }
};

}  // namespace

SlopeSearch::SlopeSearch(QuantizedModel fixed, const SlopeLayers& layers, const EncodeOptions& encode,
                         StageTimes& times, Progress& progress, std::function<double(const SlopeOutcome&)> measure_gap)
    : fixed_(std::move(fixed)),
      layers_(layers),
      encode_(encode),
      times_(times),
      progress_(progress),
      measure_gap_(std::move(measure_gap)),
      shrinkage_(layers.options().shrinkage) {}

SlopeOutcome SlopeSearch::encode(double log2_c) {
  SlopeOutcome outcome;
  outcome.log2_c = log2_c;
  outcome.model = fixed_;
  times_.time("solve", [&] {
    for (SlopeMatrix& solved : layers_.solve(log2_c, shrinkage_, progress_)) {
      outcome.reports.emplace(solved.tensor.name, std::move(solved.report));
      outcome.model.tensors.push_back(std::move(solved.tensor));
    }
  });
  std::ranges::sort(outcome.model.tensors, {}, &QuantizedTensor::name);
  outcome.artifact = times_.time("encode", [&] { return encode_artifact(outcome.model, encode_, cache_, progress_); });
  outcome.encodes = ++encodes_;
  return outcome;
}

SlopeOutcome SlopeSearch::fit_bytes(uint64_t limit) {
  const SizeModel& model = layers_.size_model();
  auto aim = [&] { return (reserve_ ? kAimBeforeMore : kAim) * static_cast<double>(limit); };
  const double fill = reserve_ ? kFillBeforeMore : kFill;
  Bracket bracket;
  std::optional<SlopeOutcome> best;
  uint64_t smallest = UINT64_MAX;
  double log2_c = model.log2_c_for(8 * aim());
  double last_log2_c = NAN, last_bytes = NAN;
  for (int i = 0; i < kMaxEncodes; ++i) {
    SlopeOutcome tried = encode(log2_c);
    const auto bytes = static_cast<double>(tried.artifact.size());
    if (reserve_ && i == 0)
      limit -= static_cast<uint64_t>(std::clamp<int64_t>(
          reserve_(tried, cache_), 0, static_cast<int64_t>(kMostReserve * static_cast<double>(limit))));
    smallest = std::min<uint64_t>(smallest, tried.artifact.size());
    const bool fits = tried.artifact.size() <= limit;
    (fits ? bracket.high : bracket.low) = log2_c;
    if (fits && (!best || tried.artifact.size() > best->artifact.size())) best = std::move(tried);
    if (best && static_cast<double>(best->artifact.size()) >= fill * static_cast<double>(limit)) break;
    if (bracket.high - bracket.low < 1e-5) break;
    // Steps that are kept below the weights do not make files smaller for ever.
    if (!fits && shrinkage_ > 0 && last_log2_c < log2_c && bytes > kTooLittle * last_bytes) {
      shrinkage_ = shrinkage_ > kLeastShrinkage ? shrinkage_ / 4 : 0;
      bracket = {};
      last_log2_c = last_bytes = NAN;
      continue;
    }
    // Bytes per octave: the size model's, then what was seen.
    double slope = (model.bits(log2_c + 0.5) - model.bits(log2_c - 0.5)) / 8;
    if (std::abs(last_log2_c - log2_c) > 1e-4) {
      const double seen = (bytes - last_bytes) / (log2_c - last_log2_c);
      slope = std::clamp(seen, 2 * slope, slope / 4);
    }
    last_log2_c = log2_c;
    last_bytes = bytes;
    log2_c = bracket.inside(log2_c + (aim() - bytes) / slope);
  }
  if (!best)
    throw CheckError(fmt::format("the budget cannot be met: the smallest artifact reached takes {}, it may take {}",
                                 bytes_text(smallest), bytes_text(limit)));
  best->encodes = encodes_;
  return std::move(*best);
}

SlopeOutcome SlopeSearch::fit_gap(double gap, double first_log2_c) {
  constexpr double kCloseEnough = 0.98;
  Bracket bracket;
  double log2_c = first_log2_c;
  std::optional<SlopeOutcome> best;
  double smallest = INFINITY;
  for (int i = 0; i < kMaxEncodes; ++i) {
    SlopeOutcome tried = encode(log2_c);
    const double found = measure_gap_(tried);
    smallest = std::min(smallest, found);
    (found <= gap ? bracket.low : bracket.high) = log2_c;
    if (found <= gap && (!best || tried.artifact.size() < best->artifact.size())) {
      best = std::move(tried);
      if (found >= kCloseEnough * gap) break;
    }
    if (bracket.high - bracket.low < 0.005) break;
    // The loss grows with c^2.
    log2_c = bracket.inside(found > 0 ? log2_c + std::log2(0.99 * gap / found) / 2 : log2_c + 1);
  }
  if (!best)
    throw CheckError(fmt::format(
        "the gap cannot be met: the smallest reached is {:.6f} bits per byte, {:.6f} asked for", smallest, gap));
  best->encodes = encodes_;
  return std::move(*best);
}

uint64_t bytes_at(double bits_per_weight, int64_t parameters) {
  return static_cast<uint64_t>(bits_per_weight * static_cast<double>(parameters) / 8);
}

SlopeOutcome SlopeSearch::run(const SlopeTarget& target) {
  if (target.log2_c) return encode(*target.log2_c);
  const std::optional<uint64_t> limit = target.limit_bytes;
  const double start = layers_.size_model().log2_c_for(kDefaultBits * static_cast<double>(layers_.weights()));
  if (!target.bpb_gap) return limit ? fit_bytes(*limit) : encode(start);
  SlopeOutcome outcome = fit_gap(*target.bpb_gap, start);
  if (limit && outcome.artifact.size() > *limit)
    throw CheckError(fmt::format("a gap of {:.6f} bits per byte takes {}, the artifact may take {}", *target.bpb_gap,
                                 bytes_text(outcome.artifact.size()), bytes_text(*limit)));
  return outcome;
}

}  // namespace thimble
