// slope_bridge.cpp: bridge_limit() of slope_fill.h.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "quantizer/methods/slope/slope_fill.h"

namespace thimble {
namespace {

// Encodes with all matrices solved anew, and with one.
constexpr int kMaxMoves = 12, kMaxBridgeSolves = 96;
// Octaves that the common step is moved by first, then twice as many, and so on until the limit is passed.
constexpr double kFirstMove = 0.25;
// Two artifacts with common steps no further apart than these octaves are close enough for a path between them.
constexpr double kCloseMoves = 0.25;
// Up to here steps that grow keep to the shrinkage, with which they do not make files smaller for ever.
constexpr double kMostShrunkMove = 0.5;
// Halvings of a matrix's steps, within this many octaves, and of log2 of its rate weight.
constexpr int kStepHalvings = 6, kRateHalvings = 14;
constexpr double kMostOctaves = 4;
// No code but 0 is worth its bits at the highest, and every code at the lowest.
constexpr double kHighestLog2Rate = 19, kLowestLog2Rate = -12;
// Octaves that the single step of a matrix is shortened by until it takes too much.
constexpr int kFlatMoves = 16;

struct Part {
  SlopeMatrix solved;
  SlopeSetting setting;
};
using Parts = std::map<std::string, Part>;

// What the bits that `high` takes more than `low` bring, each.
double worth(const Part& low, const Part& high) {
  const SlopeReport &few = low.solved.report, &many = high.solved.report;
  const double gain = few.row_weighted_loss - many.row_weighted_loss;
  const double worth = gain / std::max(1.0, many.estimated_bits - few.estimated_bits);
  return std::isfinite(worth) ? worth : 0;
}

// One run.
class Crossing {
 public:
  Crossing(const SlopeTools& tools, uint64_t limit_bytes, const RowChanges& changes, SlopeOutcome& outcome)
      : tools_(tools), limit_(limit_bytes), changes_(changes), best_(outcome), current_(outcome) {}

  bool run() {
    if (find_ends()) {
      mix_matrices();
      for (size_t i = crossed_; i < order_.size() && goes_on(); ++i) cross(order_[i]);
    }
    if (is_filled(best_.bytes, limit_))
      best_.fill_reason.clear();
    else if (best_.fill_reason.empty())
      best_.fill_reason =
          fmt::format("sizes move in leaps here: the next larger artifact found takes {}", bytes_text(next_larger_));
    return is_changed_;
  }

 private:
  bool goes_on() const { return solves_ < kMaxBridgeSolves && !is_filled(best_.bytes, limit_); }

  // Encodes current_; what fits better than the best is the best.
  bool fits() {
    current_.bytes = tools_.encoder.bytes(current_.model, tools_.encode, silent_);
    const uint64_t bytes = current_.bytes, best = best_.bytes;
    if (bytes > limit_) {
      next_larger_ = std::min(next_larger_, bytes);
      return false;
    }
    if (best > limit_ || bytes > best) {
      best_ = current_;
      is_changed_ = true;
    }
    return true;
  }

  void place(const std::string& name, const Part& part) {
    current_.tensor(name) = part.solved.tensor;
    current_.reports.at(name) = part.solved.report;
    current_.settings.at(name) = part.setting;
  }

  Part current_part(const std::string& name) {
    return {{current_.tensor(name), current_.reports.at(name)}, current_.settings.at(name)};
  }

  Parts solve(const SlopeSettings& settings, Progress& progress) const {
    Parts parts;
    for (SlopeMatrix& matrix : tools_.solve(settings, tools_.encode, progress)) {
      change_rows(changes_, matrix.tensor);
      const std::string name = matrix.tensor.name;
      parts[name] = {std::move(matrix), settings.at(name)};
    }
    return parts;
  }

  Parts zeros() const {
    SlopeSettings settings = current_.settings;
    for (auto& [name, setting] : settings) setting = {kHighestLog2C};
    Parts parts = solve(settings, tools_.progress);  // for their reports
    for (QuantizedTensor& tensor : tools_.layers.zeros()) {
      const std::string name = tensor.name;
      parts.at(name).solved.tensor = std::move(tensor);
    }
    return parts;
  }

  SlopeSettings moved(const SlopeSettings& start, double octaves) const {
    const double lowest_log2_c = tools_.layers.finest_log2_c();
    SlopeSettings settings = start;
    for (auto& [name, setting] : settings) {
      const double lowest = std::min(lowest_log2_c, setting.log2_c);
      setting.log2_c = std::clamp(setting.log2_c + octaves, lowest, kHighestLog2C);
      if (octaves > kMostShrunkMove) setting.shrinkage = 0;
    }
    return settings;
  }

  // Two sets of solutions: with all of low_ the model fits, with all of high_ it does not. False: no such two, for even
  // the finest codes fit, or one was found that fills the limit.
  bool find_ends() {
    const bool is_fitting = current_.bytes <= limit_;
    Parts &near = is_fitting ? low_ : high_, &far = is_fitting ? high_ : low_;
    for (const auto& [name, setting] : current_.settings) near[name] = current_part(name);
    if (!is_fitting) next_larger_ = current_.bytes;
    const SlopeSettings start = current_.settings;
    SlopeSettings last = start;
    double move = is_fitting ? -kFirstMove : kFirstMove, near_move = 0;
    std::optional<double> far_move;
    for (int i = 0; i < kMaxMoves; ++i) {
      const SlopeSettings settings = moved(start, move);
      if (settings == last) break;
      last = settings;
      Parts tried = solve(settings, tools_.progress);
      for (const auto& [name, part] : tried) place(name, part);
      const bool is_near = fits() == is_fitting;
      if (is_filled(best_.bytes, limit_)) return false;
      (is_near ? near : far) = std::move(tried);
      (is_near ? near_move : far_move.emplace()) = move;
      if (far_move && std::abs(*far_move - near_move) <= kCloseMoves) break;
      move = far_move ? (near_move + *far_move) / 2 : 2 * move;
    }
    if (far_move) return true;
    if (!is_fitting) far = zeros();
    if (is_fitting)
      best_.fill_reason = "the finest codes of the method, about 16 bits for each quantized weight, take no more";
    return !is_fitting;
  }

  // current_: as many of high_, in order of their worth, as fit; order_[crossed_] is the first that does not.
  void mix_matrices() {
    for (const auto& [name, part] : low_) order_.push_back(name);
    std::ranges::stable_sort(order_, std::greater{},
                             [&](const std::string& name) { return worth(low_.at(name), high_.at(name)); });
    size_t low = 0, high = order_.size();
    auto place_first = [&](size_t count) {
      for (size_t i = 0; i < order_.size(); ++i) place(order_[i], (i < count ? high_ : low_).at(order_[i]));
    };
    while (high - low > 1 && goes_on()) {
      const size_t middle = low + (high - low) / 2;
      place_first(middle);
      (fits() ? low : high) = middle;
    }
    crossed_ = low;
    if (!goes_on()) return;
    place_first(low);
    fits();
  }

  // Solves the matrix anew; stays with that where it fits and takes more.
  bool fits_with(const std::string& name, const SlopeSetting& setting) {
    ++solves_;
    return fits_with(name, std::move(solve({{name, setting}}, silent_).at(name)));
  }

  bool fits_with(const std::string& name, const Part& part) {
    const Part before = current_part(name);
    const uint64_t bytes = current_.bytes;
    place(name, part);
    const bool is_fitting = fits();
    if (is_fitting && current_.bytes > bytes) return true;
    place(name, before);
    current_.bytes = bytes;
    return is_fitting;
  }

  // From the matrix as it is, which fits, to that of high_, which does not.
  void cross(const std::string& name) {
    const Part& end = high_.at(name);
    SlopeSetting high = end.setting;
    double low = std::min(current_.settings.at(name).log2_c, high.log2_c + kMostOctaves);
    if (fits_with(name, end)) return;
    for (int i = 0; i < kStepHalvings && goes_on(); ++i) {
      SlopeSetting middle = high;
      middle.log2_c = (low + high.log2_c) / 2;
      if (fits_with(name, middle))
        low = middle.log2_c;
      else
        high = middle;
    }
    if (goes_on()) halve_rate(name, high);
    SlopeSetting flat = {high.log2_c, 0, 0, true};
    for (int i = 0; i < kFlatMoves && goes_on() && fits_with(name, flat); ++i) flat.log2_c -= 1;
    if (goes_on()) halve_rate(name, flat);
  }

  // `setting` does not fit; nor may it at any rate weight.
  void halve_rate(const std::string& name, SlopeSetting setting) {
    auto fits_at = [&](double log2_rate) {
      setting.rate_weight = std::exp2(log2_rate);
      return fits_with(name, setting);
    };
    double fitting = kHighestLog2Rate, other = kLowestLog2Rate;
    if (!fits_at(fitting)) return;
    for (int i = 0; i < kRateHalvings && goes_on(); ++i) {
      const double middle = (fitting + other) / 2;
      (fits_at(middle) ? fitting : other) = middle;
    }
  }

  const SlopeTools& tools_;
  uint64_t limit_;
  const RowChanges& changes_;
  SlopeOutcome& best_;
  SlopeOutcome current_;
  Parts low_, high_;
  std::vector<std::string> order_;  // of matrices
  size_t crossed_ = 0;
  int solves_ = 0;
  uint64_t next_larger_ = UINT64_MAX;
  bool is_changed_ = false;
  mutable SilentProgress silent_;
};

}  // namespace

bool bridge_limit(const SlopeTools& tools, uint64_t limit_bytes, const RowChanges& changes, SlopeOutcome& outcome) {
  outcome.fill_reason.clear();
  return !is_filled(outcome.bytes, limit_bytes) && Crossing(tools, limit_bytes, changes, outcome).run();
}

}  // namespace thimble
