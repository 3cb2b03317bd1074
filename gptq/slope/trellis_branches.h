// trellis_branches.h: what a step of Viterbi down a column chooses among: the levels that one weight can take, their
// costs, and the states that lead to a state. For the CPU's solver and the device's.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "gptq/slope/rate_model.h"
#include "runtime/codes/quantized_model.h"
#include "runtime/codes/trellis.h"
#include "runtime/tensor/host_device.h"

namespace thimble {

// The states that lead to a state. Steps of the state machine are exclusive ors: with S states and state = 2 u + set, a
// code of parity p leads to
//   u ^ (set != 0 ? next(1, 0) : 0) ^ (p != 0 ? next(0, 1) : 0)
// of which only next(1, 0) has the bit S / 2. So the lower half of the states is reached from even states alone and
// the upper half from odd ones, each state from two, which differ in the parity.
class TrellisMerges {
 public:
  THIMBLE_HOST_DEVICE explicit constexpr TrellisMerges(Trellis trellis)
      : half_(trellis.states() / 2),
        set_flip_(half_ > 0 ? trellis.next(1, 0) % half_ : 0),
        parity_flip_(trellis.next(0, 1)) {}

  // The set of the states that lead to `state`.
  THIMBLE_HOST_DEVICE constexpr int set(uint32_t state) const { return state < half_ ? 0 : 1; }
  // The state that a code of this parity leads to `state` from.
  THIMBLE_HOST_DEVICE constexpr uint32_t from(uint32_t state, int parity) const {
    const uint32_t u = state < half_ ? state : (state - half_) ^ set_flip_;
    return 2 * (parity != 0 ? u ^ parity_flip_ : u) + static_cast<uint32_t>(set(state));
  }

 private:
  uint32_t half_, set_flip_, parity_flip_;
};

// cost = (target - level)^2 + rate_weight * bits(level), the bits from the rate model's row of the weight's class.
struct LevelCosts {
  const float* class_bits;  // (RateTable::kLevels)
  float rate_weight;

  THIMBLE_HOST_DEVICE float operator()(double target, int32_t level) const {
    const auto error = static_cast<float>(target - level);
    const float square = error * error;
    return rate_weight == 0 ? square : square + rate_weight * class_bits[RateTable::column(level)];
  }
};

struct LevelChoice {
  int32_t level;
  float cost;
};

// The cheapest of `nearest` and the levels a multiple of `spacing` from it towards 0: from the nearest level on towards
// 0 the error rises and the bits fall.
THIMBLE_HOST_DEVICE inline LevelChoice cheapest_level(double target, const LevelCosts& cost, int32_t nearest,
                                                      int spacing) {
  LevelChoice best{nearest, cost(target, nearest)};
  if (cost.rate_weight == 0) return best;
  for (;;) {
    const int32_t next = best.level < 0 ? best.level + spacing : best.level - spacing;
    if (std::abs(next) >= std::abs(best.level)) return best;
    const float next_cost = cost(target, next);
    if (!(next_cost < best.cost)) return best;
    best = {next, next_cost};
  }
}

// What of a target, in levels, can be reached: its neighbours of every residue are levels of codes in range.
THIMBLE_HOST_DEVICE inline double reachable_target(double target) {
  constexpr auto kLargestTarget = static_cast<double>(2 * kMaxSteppedCode - 4);
  return target < -kLargestTarget ? -kLargestTarget : target > kLargestTarget ? kLargestTarget : target;
}

// The nearest level of a code without a trellis.
THIMBLE_HOST_DEVICE inline int32_t nearest_even_level(double target) {
  return 2 * static_cast<int32_t>(std::nearbyint(target / 2));
}

// The four levels from which the cheapest of each residue is looked for: of four neighbours each has another residue
// (level % 4 = set + 2 * parity of the code) and is the nearest that has it.
constexpr int32_t kBranches = 4;
THIMBLE_HOST_DEVICE inline int32_t first_neighbour(double target) {
  const double rounded = std::nearbyint(target);
  return static_cast<int32_t>(rounded) - (target < rounded ? 2 : 1);
}
// That of residue `branch`.
THIMBLE_HOST_DEVICE inline int32_t neighbour(int32_t first, int32_t branch) {
  return first + ((branch - first) & (kBranches - 1));
}

// Paths are extended from a column's first row onwards and from its last one backwards, in groups of path_rows(), and
// meet about half way, before meeting_row(). Each remembers the state in which it entered its group; that state and the
// one in which it leaves the group tell the parities of the codes between.
THIMBLE_HOST_DEVICE constexpr int path_rows(int bits) { return bits < 3 ? bits : bits / 3 * 3; }
THIMBLE_HOST_DEVICE constexpr int64_t path_groups(int64_t rows, int bits) {
  return (rows + path_rows(bits) - 1) / path_rows(bits);
}
template <typename Int>
THIMBLE_HOST_DEVICE constexpr Int meeting_group(Int groups) {
  return groups / 2;
}
THIMBLE_HOST_DEVICE constexpr int64_t meeting_row(int64_t rows, int bits) {
  return meeting_group(path_groups(rows, bits)) * path_rows(bits);
}

// A path so far, as one number of which the least is the best: what it costs above the state that it remembers. Costs
// are integers, whose sums are the same in any order: those of rows, less the row's lowest, times path_cost_scale(),
// rounded. All of a column's are less than kUnreachable together, what states that no path leads to cost; rows that
// only fill the last group cost nothing with even codes, and that with odd ones.
constexpr int kPathStateBits = kMaxTrellisBits;
constexpr uint32_t kPathState = (1u << kPathStateBits) - 1;
constexpr uint32_t kUnreachable = 1u << 31;
// The power of 2 for a rate weight.
float path_cost_scale(float rate_weight);
// What is added to a path. difference: of a row's costs, not negative.
THIMBLE_HOST_DEVICE inline uint32_t path_cost(float difference, float scale) {
#ifdef __CUDA_ARCH__
  return __float2uint_rn(difference * scale) << kPathStateBits;
#else
  return static_cast<uint32_t>(std::nearbyint(difference * scale)) << kPathStateBits;
#endif
}

}  // namespace thimble
