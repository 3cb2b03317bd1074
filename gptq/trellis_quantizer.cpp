// trellis_quantizer.cpp: see trellis_quantizer.h.
#include "gptq/trellis_quantizer.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "runtime/quantized_model.h"

namespace thimble {
namespace {

constexpr float kUnreachable = 1e30F;

// What of a target can be reached: its neighbours of every residue are levels of codes in range.
constexpr auto kLargestTarget = static_cast<double>(2 * kMaxSteppedCode - 4);

// Steps of the state machine are exclusive ors: with S states and state = 2 u + set, a code of parity p leads to
//   u ^ (set != 0 ? next(1, 0) : 0) ^ (p != 0 ? next(0, 1) : 0)
// of which only next(1, 0) has the bit S / 2. So the lower half of the states is reached from even states alone and
// the upper half from odd ones, each state from two, which differ in the parity.
constexpr bool halves_follow_sets(int bits) {
  const Trellis trellis(bits);
  return trellis.next(1, 0) >= trellis.states() / 2 && trellis.next(0, 1) < trellis.states() / 2;
}
static_assert(halves_follow_sets(2) && halves_follow_sets(3) && halves_follow_sets(4) && halves_follow_sets(5) &&
              halves_follow_sets(6) && halves_follow_sets(7) && halves_follow_sets(8) && kMaxTrellisBits == 8);

}  // namespace

TrellisQuantizer::TrellisQuantizer(Trellis trellis, const RateTable& rates, double rate_weight, int64_t most_rows)
    : states_(trellis.states()),
      half_(states_ / 2),
      set_flip_(trellis.next(1, 0) % std::max(1u, half_)),
      parity_flip_(trellis.next(0, 1)),
      rates_(rates),
      rate_weight_(static_cast<float>(rate_weight)) {
  if (trellis.bits() == 0) return;
  branches_.resize(static_cast<size_t>(most_rows));
  costs_.resize(static_cast<size_t>(most_rows + 1) * states_);
}

float TrellisQuantizer::cost(double target, int scale_class, int32_t level) const {
  const auto error = static_cast<float>(target - level);
  return error * error + rate_weight_ * rates_.bits(scale_class, level);
}

// From the nearest level on towards 0 the error rises and the bits fall.
TrellisQuantizer::Choice TrellisQuantizer::choose(double target, int scale_class, int32_t nearest, int spacing) const {
  Choice best{nearest, cost(target, scale_class, nearest)};
  for (;;) {
    const int32_t next = best.level < 0 ? best.level + spacing : best.level - spacing;
    if (std::abs(next) >= std::abs(best.level)) return best;
    const float next_cost = cost(target, scale_class, next);
    if (!(next_cost < best.cost)) return best;
    best = {next, next_cost};
  }
}

TrellisQuantizer::Branches TrellisQuantizer::branches(double target, int scale_class) const {
  // Of four neighbours each has another residue and is the nearest that has it.
  const double rounded = std::nearbyint(target);
  const auto nearest = static_cast<int32_t>(rounded);
  const int32_t first = target < rounded ? nearest - 2 : nearest - 1;
  Branches found;
  float least = kUnreachable;
  for (int32_t level = first; level < first + 4; ++level) {
    const Choice choice = choose(target, scale_class, level, 4);
    found.levels[level & 3] = choice.level;
    found.costs[level & 3] = choice.cost;
    least = std::min(least, choice.cost);
  }
  for (float& value : found.costs) value -= least;
  return found;
}

void TrellisQuantizer::add_compare_select(const float* costs, const Branches& b, float* next) const {
  for (uint32_t u = 0; u < half_; ++u)
    next[u] = std::min(costs[2 * u] + b.costs[0], costs[2 * (u ^ parity_flip_)] + b.costs[2]);
  const float* odd = costs + 1;
  for (uint32_t n = 0; n < half_; ++n) {
    const uint32_t u = n ^ set_flip_;
    next[half_ + n] = std::min(odd[2 * u] + b.costs[1], odd[2 * (u ^ parity_flip_)] + b.costs[3]);
  }
}

void TrellisQuantizer::trace_back(std::span<int32_t> levels) const {
  const float* last = &costs_[levels.size() * states_];
  auto state = static_cast<uint32_t>(std::min_element(last, last + states_) - last);
  for (size_t r = levels.size(); r-- > 0;) {
    const float* costs = &costs_[r * states_];
    const Branches& b = branches_[r];
    const uint32_t set = state < half_ ? 0 : 1;
    const uint32_t even_code = 2 * (set == 0 ? state : (state - half_) ^ set_flip_) + set;
    const uint32_t odd_code = even_code ^ (2 * parity_flip_);
    const bool odd = costs[odd_code] + b.costs[2 + set] < costs[even_code] + b.costs[set];
    levels[r] = b.levels[odd ? 2 + set : set];
    state = odd ? odd_code : even_code;
  }
}

void TrellisQuantizer::quantize(std::span<const double> targets, std::span<const uint8_t> classes,
                                std::span<int32_t> levels) {
  auto reachable = [&](size_t r) { return std::clamp(targets[r], -kLargestTarget, kLargestTarget); };
  if (states_ == 1) {
    for (size_t r = 0; r < targets.size(); ++r) {
      const auto code = static_cast<int32_t>(std::nearbyint(reachable(r) / 2));
      levels[r] = choose(reachable(r), classes[r], 2 * code, 2).level;
    }
    return;
  }
  std::fill_n(costs_.begin(), states_, kUnreachable);
  costs_[0] = 0;
  for (size_t r = 0; r < targets.size(); ++r) {
    branches_[r] = branches(reachable(r), classes[r]);
    add_compare_select(&costs_[r * states_], branches_[r], &costs_[(r + 1) * states_]);
  }
  trace_back(levels);
}

}  // namespace thimble
