// slope_search.cpp: the search for a byte limit: regula falsi over real artifacts, by the slope that the size model
// predicts. slope_gap_search.cpp has the search for a gap, slope_tuning.cpp what follows a search.
#include "quantizer/methods/slope/slope_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "packer/layout/format.h"
#include "runtime/base/hash.h"

namespace thimble {
namespace {

// How far from the bytes it wants, relative to these, an artifact may be for fill_by_shifts() to do the rest.
constexpr double kNear = 0.002;
// The same of one with cross terms: solving all once more takes longer than a few matrices without them lose.
constexpr double kNearCrossed = 0.006;
constexpr double kMostReserve = 0.02;
// What is further from the bytes it should have, relative to these, is no work for fill_by_shifts().
constexpr double kFar = 0.03;
// One in so many tensors tells what a codec makes of all, and a ratio of sizes so near to 1 that it makes the same.
constexpr size_t kSampleOneIn = 6;
constexpr double kSameRatio = 0.01;

// All others compress codes tens of times slower.
EncodeOptions fast_options(const EncodeOptions& asked) {
  return asked.codec == CodecId::kNone ? asked : EncodeOptions{CodecId::kRans, asked.portable};
}

}  // namespace

SlopeSearch::SlopeSearch(QuantizedModel fixed, const SlopeTools& tools, const CrossTerms* cross_terms, Teacher* teacher,
                         GapMeter measure_gap)
    : fixed_(std::move(fixed)),
      tools_(tools),
      cross_terms_(cross_terms),
      search_encode_(fast_options(tools.encode)),
      teacher_(teacher),
      measure_gap_(std::move(measure_gap)),
      lowest_log2_c_(tools.layers.finest_log2_c()) {}

double SlopeSearch::inside(double wanted, double low, double high) {
  const double margin = std::min(0.005, (high - low) * 0.02);
  return std::clamp(wanted, low + margin, high - margin);
}

uint64_t bytes_at(double bits_per_weight, int64_t parameters) {
  return static_cast<uint64_t>(bits_per_weight * static_cast<double>(parameters) / 8);
}

QuantizedModel SlopeSearch::fixed_at(double log2_c) const {
  return with_rounded_small(fixed_, tools_.small.at(log2_c));
}

SlopeOutcome SlopeSearch::encode(double log2_c, bool crossed) {
  SlopeOutcome outcome;
  outcome.log2_c = log2_c;
  outcome.model = fixed_at(log2_c);
  const SlopeSetting setting = tools_.layers.setting_at(log2_c);
  for (const std::string& name : tools_.layers.names()) outcome.settings[name] = setting;
  std::vector<SlopeMatrix> matrices = crossed && cross_terms_
                                          ? cross_terms_->solve(log2_c, tools_.progress, tools_.packs(search_encode_))
                                          : tools_.solve(outcome.settings, search_encode_, tools_.progress);
  for (SlopeMatrix& solved : matrices) {
    outcome.reports.emplace(solved.tensor.name, std::move(solved.report));
    outcome.model.tensors.push_back(std::move(solved.tensor));
  }
  std::ranges::sort(outcome.model.tensors, {}, &QuantizedTensor::name);
  outcome.bytes = tools_.encoder.bytes(outcome.model, search_encode_, tools_.progress);
  if (!crossed) bytes_[log2_c] = outcome.bytes;
  state_.encoded.push_back({log2_c, outcome.bytes});
  ++state_.encodes;
  return outcome;
}

double SlopeSearch::size_of(const SlopeOutcome& outcome) const {
  return state_.ratio * static_cast<double>(outcome.bytes);
}

double SlopeSearch::measure_ratio(const SlopeOutcome& outcome, size_t one_in) {
  QuantizedModel sample = outcome.model;
  sample.tensors.clear();
  for (size_t i = 0; i < outcome.model.tensors.size(); i += one_in) sample.tensors.push_back(outcome.model.tensors[i]);
  auto bytes = [&](const EncodeOptions& encode) {
    return static_cast<double>(tools_.encoder.bytes(sample, encode, tools_.progress));
  };
  return bytes(tools_.encode) / bytes(search_encode_);
}

void SlopeSearch::calibrate(const SlopeOutcome& outcome) {
  if (tools_.encode != search_encode_) state_.ratio = state_.ratio_scale * measure_ratio(outcome, kSampleOneIn);
}

void SlopeSearch::finish(SlopeOutcome& outcome) {
  if (tools_.encode == search_encode_) return;
  outcome.bytes = tools_.encoder.bytes(outcome.model, tools_.encode, tools_.progress);
}

bool SlopeSearch::can_hold_zeros() const {
  return static_cast<uint64_t>(tools_.layers.weights()) * sizeof(int32_t) <= kExpansionFloorBytes;
}

SlopeOutcome SlopeSearch::zeros() {
  SlopeOutcome outcome = encode(kHighestLog2C);  // for its reports
  for (QuantizedTensor& tensor : tools_.layers.zeros()) outcome.tensor(tensor.name) = std::move(tensor);
  outcome.bytes = tools_.encoder.bytes(outcome.model, search_encode_, tools_.progress);
  return outcome;
}

uint64_t SlopeSearch::bytes_with(QuantizedModel model, std::vector<QuantizedTensor> matrices,
                                 const EncodeOptions& encode) {
  if (!can_hold_zeros()) return 0;
  std::ranges::move(matrices, std::back_inserter(model.tensors));
  std::ranges::sort(model.tensors, {}, &QuantizedTensor::name);
  return tools_.encoder.bytes(model, encode, tools_.progress);
}

int64_t SlopeSearch::reserve_bytes(const SlopeOutcome& outcome, uint64_t limit) {
  if (learns() ? !teacher_->learns_rows() : !distills()) return 0;
  const int64_t bytes =
      distill_reserve_bytes(outcome.model, teacher_->tuned(outcome.model), outcome.bytes,
                            tools_.small.at(outcome.log2_c), search_encode_, tools_.encoder, tools_.progress);
  return std::clamp<int64_t>(bytes, 0, static_cast<int64_t>(kMostReserve * static_cast<double>(limit)));
}

// By what was seen on both sides of `wanted`, else by the slope of the size model and of what was seen.
double SlopeSearch::next_log2_c(double wanted_bytes) {
  const double wanted = wanted_bytes / state_.ratio;
  auto bytes_of = [](const auto& point) { return std::pair(point.first, static_cast<double>(point.second)); };
  auto fitting = std::ranges::find_if(bytes_, [&](const auto& point) { return bytes_of(point).second <= wanted; });
  if (fitting != bytes_.begin() && fitting != bytes_.end()) {
    auto [high, high_bytes] = bytes_of(*fitting);
    auto [low, low_bytes] = bytes_of(*std::prev(fitting));
    return inside(low + (high - low) * (low_bytes - wanted) / (low_bytes - high_bytes), low, high);
  }
  const bool is_too_large = fitting == bytes_.end();
  const auto [last, last_bytes] = bytes_of(is_too_large ? *bytes_.rbegin() : *bytes_.begin());
  const SizeModel& model = tools_.layers.size_model();
  double slope = (model.bits(last + 0.5) - model.bits(last - 0.5)) / 8;
  if (bytes_.size() > 1) {
    const auto [other, other_bytes] = bytes_of(is_too_large ? *std::next(bytes_.rbegin()) : *std::next(bytes_.begin()));
    slope = std::clamp((last_bytes - other_bytes) / (last - other), 2 * slope, slope / 4);
  }
  if (slope == 0) return is_too_large ? kHighestLog2C : lowest_log2_c_;
  const double end = is_too_large ? last + kLongestMove : last - kLongestMove;
  return std::clamp(inside(last + (wanted - last_bytes) / slope, std::min(last, end), std::max(last, end)),
                    lowest_log2_c_, kHighestLog2C);
}

double SlopeSearch::predicted_log2_c(double bytes) const {
  return std::clamp(tools_.layers.size_model().log2_c_for(8 * (bytes - fixed_bytes_)), lowest_log2_c_, kHighestLog2C);
}

// Encodes until an artifact is near to `wanted` bytes.
SlopeOutcome SlopeSearch::approach(SlopeOutcome nearest, double wanted) {
  auto distance = [&](const SlopeOutcome& outcome) { return std::abs(size_of(outcome) - wanted); };
  double last_log2_c = nearest.log2_c;
  while (distance(nearest) > kNear * wanted && state_.encodes < kMaxEncodes) {
    const double log2_c = next_log2_c(wanted);
    if (std::abs(log2_c - last_log2_c) < 1e-5) break;
    SlopeOutcome tried = encode(log2_c);
    last_log2_c = tried.log2_c;
    if (distance(tried) < distance(nearest)) nearest = std::move(tried);
  }
  return nearest;
}

// The same for a codec that is too slow for every step. Its bytes over those of a fast one depend on c: they are
// learned from a few tensors at each, and from all tensors once, near the end.
SlopeOutcome SlopeSearch::approach_with_ratio(SlopeOutcome nearest, double wanted) {
  auto approach_again = [&] {
    calibrate(nearest);
    nearest = approach(std::move(nearest), wanted);
  };
  if (tools_.encode == search_encode_) return nearest;
  approach_again();
  if (std::abs(state_.ratio - 1) <= kSameRatio) return nearest;
  approach_again();
  state_.ratio_scale = measure_ratio(nearest, 1) / measure_ratio(nearest, kSampleOneIn);
  approach_again();
  approach_again();
  return nearest;
}

// They take other bytes than the search found: once more where fill_by_shifts() could not make up for that.
SlopeOutcome SlopeSearch::cross(double log2_c, double wanted) {
  SlopeOutcome crossed = encode(log2_c, true);
  calibrate(crossed);
  const double missing = wanted - size_of(crossed);
  if (std::abs(missing) <= kNearCrossed * wanted) return crossed;
  const SizeModel& model = tools_.layers.size_model();
  const double slope = (model.bits(crossed.log2_c + 0.5) - model.bits(crossed.log2_c - 0.5)) / 8;
  return encode(std::clamp(crossed.log2_c + missing / slope, lowest_log2_c_, kHighestLog2C), true);
}

// More bytes are no use where steps are as short as they may be, which the bridge says.
bool SlopeSearch::fill(uint64_t limit, const RowChanges& changes, SlopeOutcome& outcome) {
  const bool is_finest = outcome.log2_c <= lowest_log2_c_ && outcome.bytes <= limit;
  const bool is_shifted = !is_finest && fill_by_shifts(tools_, limit, changes, outcome);
  return bridge_limit(tools_, limit, changes, outcome) || is_shifted;
}

SlopeOutcome SlopeSearch::search_bytes(uint64_t limit, double aim, uint64_t smallest) {
  auto set_fixed_bytes = [&](QuantizedModel fixed) {
    fixed_bytes_ =
        static_cast<double>(bytes_with(std::move(fixed), tools_.layers.zeros_with_columns(), search_encode_));
  };
  set_fixed_bytes(fixed_);
  if (!tools_.small.empty()) set_fixed_bytes(fixed_at(predicted_log2_c(aim)));
  SlopeOutcome outcome = encode(predicted_log2_c(aim));
  const auto reserve = static_cast<double>(reserve_bytes(outcome, limit));
  const double wanted = state_.wanted_bytes = std::max(aim - reserve, (aim + static_cast<double>(smallest)) / 2);
  return approach_with_ratio(approach(std::move(outcome), wanted), wanted);
}

uint64_t SlopeSearch::search_key(uint64_t limit) const {
  const int64_t codec = tools_.encode.codec ? static_cast<int64_t>(*tools_.encode.codec) : -1;
  return Hasher()
      .add(tools_.layers.key())
      .add(uint64_t{tools_.encode.portable})
      .add(hash_of(fixed_))
      .add(tools_.small.key())
      .add(limit)
      .add(static_cast<uint64_t>(codec))
      .add(uint64_t{distills()})
      .add(uint64_t{learns()})
      .digest();
}

SlopeOutcome SlopeSearch::fit_bytes(uint64_t limit) {
  const double aim = (1 + kFill) / 2 * static_cast<double>(limit);
  const uint64_t smallest = bytes_with(fixed_, tools_.layers.zeros(), tools_.encode);
  if (smallest > limit)
    throw CheckError(fmt::format("the budget cannot be met: the smallest artifact takes {}, it may take {}",
                                 bytes_text(smallest), bytes_text(limit)));
  SlopeOutcome outcome;
  if (cross_terms_) {
    // Its solutions are not needed any more, and their pieces go.
    state_ = tools_.layers.work().result<State>({WorkKind::kSearch, search_key(limit)}, [&] {
      state_.log2_c = search_bytes(limit, aim, smallest).log2_c;
      return state_;
    });
    outcome = cross(state_.log2_c, state_.wanted_bytes);
  } else {
    outcome = search_bytes(limit, aim, smallest);
  }
  const double wanted = state_.wanted_bytes;
  finish(outcome);
  if (std::abs(static_cast<double>(outcome.bytes) - wanted) > kFar * wanted)
    bridge_limit(tools_, static_cast<uint64_t>(wanted), {}, outcome);
  tune(limit, tools_.encode, outcome);
  return outcome;
}

SlopeOutcome SlopeSearch::fit_step(double log2_c) {
  SlopeOutcome outcome = encode(log2_c, true);
  finish(outcome);
  tune(std::nullopt, tools_.encode, outcome);
  return outcome;
}

SlopeOutcome SlopeSearch::run(const SlopeTarget& target) {
  const double start =
      tools_.layers.size_model().log2_c_for(kDefaultBits * static_cast<double>(tools_.layers.weights()));
  const std::optional<uint64_t>& limit = target.limit_bytes;
  SlopeOutcome outcome;
  std::string reason;
  if (target.log2_c || !(limit || target.bpb_gap)) {
    outcome = fit_step(target.log2_c.value_or(start));
    reason = fmt::format("a step of 2^{} was asked for, whatever it takes", outcome.log2_c);
  } else if (target.bpb_gap) {
    outcome = fit_gap(*target.bpb_gap, start);
    reason = fmt::format("a gap of {:.6f} bits per byte was asked for, and takes no more", *target.bpb_gap);
  } else {
    outcome = fit_bytes(*limit);
    reason = outcome.fill_reason;
  }
  outcome.encodes = state_.encodes;
  outcome.encoded = state_.encoded;
  outcome.fill_reason = limit && !is_filled(outcome.bytes, *limit) ? reason : "";
  if (limit && outcome.bytes > *limit)
    throw CheckError(fmt::format("{} takes {}, the artifact may take {}",
                                 target.bpb_gap  ? fmt::format("a gap of {:.6f} bits per byte", *target.bpb_gap)
                                 : target.log2_c ? fmt::format("a step of 2^{}", *target.log2_c)
                                                 : std::string("the smallest artifact found"),
                                 bytes_text(outcome.bytes), bytes_text(*limit)));
  outcome.artifact = tools_.encoder.artifact(outcome.model, tools_.encode, tools_.progress);
  if (outcome.artifact.size() != outcome.bytes)
    throw Error(ExitCode::kInternal, fmt::format("the artifact takes {}, {} were counted before",
                                                 bytes_text(outcome.artifact.size()), bytes_text(outcome.bytes)));
  return outcome;
}

}  // namespace thimble
