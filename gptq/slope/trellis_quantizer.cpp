// trellis_quantizer.cpp: see trellis_quantizer.h.
#include "gptq/slope/trellis_quantizer.h"

#include <algorithm>

namespace thimble {

TrellisQuantizer::TrellisQuantizer(Trellis trellis, double rate_weight, int64_t most_rows)
    : trellis_(trellis), rate_weight_(static_cast<float>(rate_weight)), cost_scale_(path_cost_scale(rate_weight_)) {
  if (trellis.bits() == 0) return;
  const int group = path_rows(trellis.bits());
  const auto groups = static_cast<size_t>(path_groups(most_rows, trellis.bits()));
  branches_.resize(groups * static_cast<size_t>(group));
  const size_t states = trellis.states();
  remembered_.resize(groups * states);
  for (auto* paths : {&paths_, &next_, &met_}) paths->resize(states);
  even_ends_.resize(states);
  parities_.resize(states);
  auto end = [&](uint32_t state, uint32_t parities) {
    for (int row = 0; row < group; ++row) state = trellis.next(state, static_cast<int32_t>(parities >> row & 1));
    return state;
  };
  for (uint32_t state = 0; state < states; ++state) even_ends_[state] = end(state, 0);
  for (uint32_t parities = 0; parities < 1u << group; ++parities) parities_[end(0, parities)] = parities;
}

TrellisQuantizer::Branches TrellisQuantizer::branches(double target, const LevelCosts& cost) const {
  Branches found;
  float costs[kBranches];
  const int32_t first = first_neighbour(target);
  for (int32_t level = first; level < first + kBranches; ++level) {
    const LevelChoice choice = cheapest_level(target, cost, level, kBranches);
    found.levels[level & 3] = choice.level;
    costs[level & 3] = choice.cost;
  }
  const float least = *std::ranges::min_element(costs);
  for (size_t i = 0; i < kBranches; ++i) found.costs[i] = path_cost(costs[i] - least, cost_scale_);
  return found;
}

void TrellisQuantizer::begin_group(uint8_t* remembered) {
  for (uint32_t state = 0; state < trellis_.states(); ++state) {
    remembered[state] = static_cast<uint8_t>(paths_[state] & kPathState);
    paths_[state] = (paths_[state] & ~kPathState) | state;
  }
}

const std::vector<uint32_t>& TrellisQuantizer::paths_to(int64_t meeting) {
  const auto states = static_cast<size_t>(trellis_.states());
  const auto group = static_cast<size_t>(path_rows(trellis_.bits()));
  for (uint32_t state = 0; state < states; ++state)
    paths_[state] = ((state == 0 ? 0 : kUnreachable) | state) ^ kSignedPath;
  for (size_t r = 0; r < static_cast<size_t>(meeting); ++r) {
    extend_paths(trellis_.bits(), paths_.data(), branches_[r].costs, next_.data());
    std::swap(paths_, next_);
    if ((r + 1) % group == 0) begin_group(&remembered_[r / group * states]);
  }
  return paths_;
}

const std::vector<uint32_t>& TrellisQuantizer::paths_from(int64_t meeting, int64_t rows) {
  const auto states = static_cast<size_t>(trellis_.states());
  const auto group = static_cast<size_t>(path_rows(trellis_.bits()));
  for (uint32_t state = 0; state < states; ++state) paths_[state] = state ^ kSignedPath;
  for (size_t r = static_cast<size_t>(rows); r-- > static_cast<size_t>(meeting);) {
    extend_paths_back(trellis_.bits(), paths_.data(), branches_[r].costs, next_.data());
    std::swap(paths_, next_);
    if (r % group == 0) begin_group(&remembered_[r / group * states]);
  }
  return paths_;
}

void TrellisQuantizer::levels_between(uint32_t first, uint32_t last, std::span<const Branches> branches,
                                      std::span<int32_t> levels) const {
  const uint32_t parities = parities_[last ^ even_ends_[first]];
  uint32_t state = first;
  for (size_t r = 0; r < levels.size(); ++r) {
    const uint32_t parity = parities >> r & 1;
    levels[r] = branches[r].levels[static_cast<uint32_t>(Trellis::set(state)) + 2 * parity];
    state = trellis_.next(state, static_cast<int32_t>(parity));
  }
}

void TrellisQuantizer::quantize(std::span<const double> targets, std::span<const uint8_t> classes,
                                std::span<int32_t> levels) {
  const RateTable& rates = rate_table();
  auto cost = [&](size_t r) { return LevelCosts{rates.row(classes[r]), rate_weight_}; };
  if (trellis_.bits() == 0) {
    for (size_t r = 0; r < targets.size(); ++r) {
      const double target = reachable_target(targets[r]);
      levels[r] = cheapest_level(target, cost(r), nearest_even_level(target), 2).level;
    }
    return;
  }
  const auto group = static_cast<size_t>(path_rows(trellis_.bits())), states = static_cast<size_t>(trellis_.states());
  const auto groups = static_cast<size_t>(path_groups(std::ssize(targets), trellis_.bits()));
  const int64_t meeting = meeting_row(std::ssize(targets), trellis_.bits());
  for (size_t r = 0; r < targets.size(); ++r) branches_[r] = branches(reachable_target(targets[r]), cost(r));
  for (size_t r = targets.size(); r < groups * group; ++r) branches_[r] = {{}, {0, 0, kUnreachable, kUnreachable}};

  met_ = paths_to(meeting);
  const std::vector<uint32_t>& from = paths_from(meeting, static_cast<int64_t>(groups * group));
  uint32_t best = UINT32_MAX;  // both remember the state where they meet, and both are signed
  for (size_t state = 0; state < states; ++state) best = std::min(best, met_[state] + (from[state] & ~kPathState));

  // From where they meet, the state at each group's other end is what was remembered at this one.
  auto levels_of = [&](size_t g, uint32_t first, uint32_t last) {
    const size_t row = g * group, count = std::min(group, targets.size() - row);
    levels_between(first, last, std::span(branches_).subspan(row, count), levels.subspan(row, count));
  };
  const size_t meeting_group = static_cast<size_t>(meeting) / group;
  uint32_t state = best & kPathState;
  for (size_t g = meeting_group; g-- > 0;) {
    const uint32_t first = remembered_[g * states + state];
    levels_of(g, first, state);
    state = first;
  }
  state = best & kPathState;
  for (size_t g = meeting_group; g < groups; ++g) {
    const uint32_t last = remembered_[g * states + state];
    levels_of(g, state, last);
    state = last;
  }
}

}  // namespace thimble
