// trellis_quantizer.cpp: see trellis_quantizer.h.
#include "gptq/slope/trellis_quantizer.h"

#include <algorithm>

namespace thimble {
namespace {

// What TrellisMerges rests on.
constexpr bool halves_follow_sets(int bits) {
  const Trellis trellis(bits);
  return trellis.next(1, 0) >= trellis.states() / 2 && trellis.next(0, 1) < trellis.states() / 2;
}
static_assert(halves_follow_sets(2) && halves_follow_sets(3) && halves_follow_sets(4) && halves_follow_sets(5) &&
              halves_follow_sets(6) && halves_follow_sets(7) && halves_follow_sets(8) && kMaxTrellisBits == 8);

}  // namespace

TrellisQuantizer::TrellisQuantizer(Trellis trellis, double rate_weight, int64_t most_rows)
    : trellis_(trellis), merges_(trellis), rate_weight_(static_cast<float>(rate_weight)) {
  if (trellis.bits() == 0) return;
  branches_.resize(static_cast<size_t>(most_rows));
  costs_.resize(static_cast<size_t>(most_rows + 1) * trellis.states());
}

TrellisQuantizer::Branches TrellisQuantizer::branches(double target, const LevelCosts& cost) const {
  Branches found;
  float least = kUnreachable;
  const int32_t first = first_neighbour(target);
  for (int32_t level = first; level < first + kBranches; ++level) {
    const LevelChoice choice = cheapest_level(target, cost, level, kBranches);
    found.levels[level & 3] = choice.level;
    found.costs[level & 3] = choice.cost;
    least = std::min(least, choice.cost);
  }
  for (float& value : found.costs) value -= least;
  return found;
}

void TrellisQuantizer::add_compare_select(const float* costs, const Branches& b, float* next) const {
  const uint32_t half = trellis_.states() / 2;
  const uint32_t parity_flip = merges_.from(0, 1), set_flip = merges_.from(half, 0) / 2;
  for (uint32_t u = 0; u < half; ++u)
    next[u] = std::min(costs[2 * u] + b.costs[0], costs[(2 * u) ^ parity_flip] + b.costs[2]);
  const float* odd = costs + 1;
  for (uint32_t n = 0; n < half; ++n) {
    const uint32_t u = n ^ set_flip;
    next[half + n] = std::min(odd[2 * u] + b.costs[1], odd[(2 * u) ^ parity_flip] + b.costs[3]);
  }
}

void TrellisQuantizer::trace_back(std::span<int32_t> levels) const {
  const uint32_t states = trellis_.states();
  const float* last = &costs_[levels.size() * states];
  auto state = static_cast<uint32_t>(std::min_element(last, last + states) - last);
  for (size_t r = levels.size(); r-- > 0;) {
    const float* costs = &costs_[r * states];
    const Branches& b = branches_[r];
    const int set = merges_.set(state);
    const uint32_t even_code = merges_.from(state, 0), odd_code = merges_.from(state, 1);
    const bool odd = costs[odd_code] + b.costs[2 + set] < costs[even_code] + b.costs[set];
    levels[r] = b.levels[odd ? 2 + set : set];
    state = odd ? odd_code : even_code;
  }
}

void TrellisQuantizer::quantize(std::span<const double> targets, std::span<const uint8_t> classes,
                                std::span<int32_t> levels) {
  const uint32_t states = trellis_.states();
  const RateTable& rates = rate_table();
  auto cost = [&](size_t r) { return LevelCosts{rates.row(classes[r]), rate_weight_}; };
  if (states == 1) {
    for (size_t r = 0; r < targets.size(); ++r) {
      const double target = reachable_target(targets[r]);
      levels[r] = cheapest_level(target, cost(r), nearest_even_level(target), 2).level;
    }
    return;
  }
  std::fill_n(costs_.begin(), states, kUnreachable);
  costs_[0] = 0;
  for (size_t r = 0; r < targets.size(); ++r) {
    branches_[r] = branches(reachable_target(targets[r]), cost(r));
    add_compare_select(&costs_[r * states], branches_[r], &costs_[(r + 1) * states]);
  }
  trace_back(levels);
}

}  // namespace thimble
