// slope_viterbi.cuh: Viterbi down a column on the device, in groups of as many rows as a state has bits, in which each
// step is a butterfly (trellis_labels.h): the first rows of a group within each thread's registers, the others among
// the lanes of a warp, and one barrier per group. Instead of tracing back row by row, each path carries the state along
// that it had before its group: that and the state after it differ by the parities of the codes between.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>

#include "gptq/slope/trellis_branches.h"
#include "gptq/slope/trellis_labels.h"
#include "runtime/codes/trellis.h"

namespace thimble {

constexpr int kSegmentRows = static_cast<int>(kTrellisRows);
constexpr int kPaddedRows = kSegmentRows + kMaxTrellisBits;  // the last group's rows may go beyond the segment's
constexpr int kMostStates = 1 << kMaxTrellisBits;
// Threads that Viterbi takes at most when each has 2^kHeldBits states. A column takes the least time where they are
// two, many columns where they are more: less is then looked at twice and passed between threads.
template <int kHeldBits>
constexpr int kViterbiThreads = std::max(32, kMostStates >> kHeldBits);

// What the codes of a set cost in a row.
struct alignas(8) CodeCosts {
  float even, odd;
};

// What a column's Viterbi reads and writes, in shared memory.
struct ViterbiMemory {
  CodeCosts costs[kPaddedRows][2];  // by set
  float paths[2][kMostStates];      // costs of the best paths to the states before even and odd groups, by label
  uint8_t residues[kPaddedRows];    // out: of the best path's levels
  // (1 + groups, states) after so many groups, by a state's label: that of its best path's state before the last group.
  uint8_t starts[(1 + kSegmentRows / kMaxTrellisBits) * kMostStates];

  // A row's costs, less the lowest.
  __device__ void set_costs(int row, const float (&by_residue)[kBranches]) {
    const auto [c0, c1, c2, c3] = by_residue;
    const float least = fminf(fminf(fminf(fminf(kUnreachable, c0), c1), c2), c3);
    costs[row][0] = {c0 - least, c2 - least};
    costs[row][1] = {c1 - least, c3 - least};
  }
};

// A state's best path so far.
struct Path {
  float cost;
  uint32_t start;  // the label before the group
};

__device__ inline Path better(const Path& even, const Path& odd, const CodeCosts& costs) {
  const float even_cost = even.cost + costs.even, odd_cost = odd.cost + costs.odd;
  return {fminf(even_cost, odd_cost), odd_cost < even_cost ? odd.start : even.start};
}

// Viterbi with 2^kBits states, of which each thread has 2^kMostHeldBits if there are so many.
template <int kBits, int kMostHeldBits>
class ColumnViterbi {
  static constexpr int kHeldBits = std::min(kMostHeldBits, kBits);

 public:
  // Threads of the CTA that call this; those of a warp that have no states do what others do.
  static constexpr int kThreads = std::max(32, 1 << (kBits - kHeldBits));

  __device__ ColumnViterbi(ViterbiMemory& memory, int rows)
      : memory_(memory), rows_(rows), groups_((rows + kBits - 1) / kBits) {}

  // The column's residues.
  __device__ void solve() {
    extend_paths();
    if (threadIdx.x < 32) trace_back(best_end());
  }

 private:
  // Thread t has the kHeld states of labels t, t + kStride, ... It works alone on the first rows of a group, from all
  // states which lead to its own in these rows: the kLeading that differ from t in the label's upper bits, those of
  // these rows. In the first kSharedRows they become fewer, for other threads have what they lead to besides.
  static constexpr int kOwnRows = std::min(3, kBits), kSharedRows = kOwnRows - kHeldBits;
  static constexpr uint32_t kHeld = 1u << kHeldBits, kStride = 1u << (kBits - kHeldBits);
  static constexpr uint32_t kLeading = 1u << kOwnRows, kLeadingStride = 1u << (kBits - kOwnRows);
  using Labels = TrellisLabels<kBits, kOwnRows>;
  static_assert(kSharedRows >= 0 && Labels::bit(kOwnRows - 1) == kBits - 1);
  static_assert(kBits - kOwnRows <= 5, "the other rows change bits of the lane");

  __device__ static void wait() {
    if constexpr (kThreads == 32)
      __syncwarp();
    else
      asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
  }

  __device__ void extend_paths() {
    constexpr Labels labels;
    const uint32_t own = threadIdx.x % kStride;
    uint32_t sets[kBits], after[kHeld];
#pragma unroll
    for (int row = 0; row < kBits; ++row) sets[row] = __popc(own & labels.sets[row]) & 1;
#pragma unroll
    for (uint32_t i = 0; i < kHeld; ++i) {
      after[i] = labels.map(labels.after, own | i * kStride);
      memory_.paths[0][own | i * kStride] = (own | i) == 0 ? 0 : kUnreachable;
    }
    // In rows beyond the last, all states stay what they are.
    if (const int row = rows_ + static_cast<int>(threadIdx.x); row < groups_ * kBits)
      memory_.costs[row][0] = memory_.costs[row][1] = {0, INFINITY};
    wait();

    CodeCosts costs[kBits][2];  // of a group: [1] of the set that is not the one of the label `own`
    auto load_costs = [&](int group, int first, int last) {
#pragma unroll
      for (int row = first; row < last; ++row)
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) costs[row][i] = memory_.costs[group * kBits + row][sets[row] ^ i];
    };
    // The better path in a row to the state of label own ^ difference.
    auto step = [&](int row, uint32_t difference, const Path& even, const Path& odd) {
      return better(even, odd, costs[row][__popc(difference & labels.sets[row]) & 1]);
    };
    Path paths[kHeld] = {};
    auto store_starts = [&](int groups) {
#pragma unroll
      for (uint32_t i = 0; i < kHeld; ++i)
        memory_.starts[groups << kBits | after[i]] = static_cast<uint8_t>(paths[i].start);
    };
    float *from = memory_.paths[0], *to = memory_.paths[1];
    load_costs(0, 0, kOwnRows);
    for (int group = 0; group < groups_; ++group) {
      Path leading[kLeading];
#pragma unroll
      for (uint32_t i = 0; i < kLeading; ++i) {
        const uint32_t held = i * kLeadingStride / kStride * kStride;
        const uint32_t label = (own ^ (i * kLeadingStride - held)) + held;
        leading[i] = {from[label], label};
      }
      load_costs(group, kOwnRows, kBits);
      store_starts(group);  // not before, for they are known later than the costs
      __syncwarp();         // for the compiler, which would load some and wait before others
#pragma unroll
      for (int row = 0; row < kOwnRows; ++row)
#pragma unroll
        for (uint32_t pair = 0; pair < kLeading; pair += 1u << min(row, kSharedRows)) {
          const uint32_t other = pair ^ 1u << row;
          if (other < pair) continue;
          const Path even = leading[pair], odd = leading[other];
          leading[pair] = step(row, pair * kLeadingStride, even, odd);
          if (row >= kSharedRows) leading[other] = step(row, other * kLeadingStride, odd, even);
        }
#pragma unroll
      for (uint32_t i = 0; i < kHeld; ++i) paths[i] = leading[i << kSharedRows];
#pragma unroll
      for (int row = kOwnRows; row < kBits; ++row)
#pragma unroll
        for (uint32_t i = 0; i < kHeld; ++i) {
          const int lanes = 1 << Labels::bit(row);
          const Path odd{__shfl_xor_sync(~0u, paths[i].cost, lanes), __shfl_xor_sync(~0u, paths[i].start, lanes)};
          paths[i] = step(row, i * kStride, paths[i], odd);
        }
      load_costs(min(group + 1, groups_ - 1), 0, kOwnRows);
#pragma unroll
      for (uint32_t i = 0; i < kHeld; ++i) to[after[i]] = paths[i].cost;
      float* const read = from;
      from = to, to = read;
      wait();
    }
    store_starts(groups_);
    wait();
  }

  // The label after the last group of the path of the least cost, of those the one to the first state. By one warp.
  __device__ uint32_t best_end() const {
    constexpr Labels labels;
    constexpr TrellisMerges kMerges{Trellis(kBits)};
    uint32_t states[kBits];  // from labels to states at the end of the last row
#pragma unroll
    for (int i = 0; i < kBits; ++i) states[i] = labels.states[i];
#pragma unroll 1
    for (int row = rows_; row < groups_ * kBits; ++row)
#pragma unroll
      for (uint32_t& state : states) state = kMerges.from(state, 0);
    uint32_t least = ~0u, best = ~0u;  // bits of a cost, which is not negative; state and label
#pragma unroll
    for (uint32_t others = 0; others < Labels::kStates; others += 32)
      if (const uint32_t label = threadIdx.x % 32 | others; label < Labels::kStates) {
        const uint32_t cost = __float_as_uint(memory_.paths[groups_ % 2][label]);
        const uint32_t candidate = labels.map(states, label) << kBits | label;
        if (cost < least || (cost == least && candidate < best)) least = cost, best = candidate;
      }
    const uint32_t least_of_all = __reduce_min_sync(~0u, least);
    return __reduce_min_sync(~0u, least == least_of_all ? best : ~0u) % Labels::kStates;
  }

  // The residues of the path to the state of this label after the last group. By one warp, in whose lanes are
  // consecutive groups. At first a lane guesses the state after its own. While there is one whose path does not begin
  // where that of the lane before it ends, all trace theirs again from there. Paths merge soon: a few times suffice.
  __device__ void trace_back(uint32_t end) {
    constexpr Labels labels;
    const int each = (groups_ + 31) / 32, lane = static_cast<int>(threadIdx.x);
    const int first = min(lane * each, groups_), last = min(first + each, groups_);
    auto trace = [&](uint32_t label, auto&& visit) {
#pragma unroll 1
      for (int group = last; group-- > first;) {
        const uint32_t start = memory_.starts[(group + 1) << kBits | label];
        visit(group, start, label);
        label = start;
      }
      return label;
    };
    uint32_t after = end;
    for (bool merged = false; !merged;) {
      const uint32_t next_start = __shfl_down_sync(~0u, trace(after, [](int, uint32_t, uint32_t) {}), 1);
      const uint32_t right = lane == 31 ? end : next_start;
      merged = __all_sync(~0u, right == after);
      after = right;
    }
    trace(after, [&](int group, uint32_t label, uint32_t next) {
      const uint32_t odd_codes = label ^ labels.map(labels.before, next);  // by Labels::bit(row)
#pragma unroll
      for (int row = 0; row < kBits; ++row) {
        const uint32_t odd_code = odd_codes & 1u << Labels::bit(row);
        memory_.residues[group * kBits + row] =
            static_cast<uint8_t>((__popc(label & labels.sets[row]) & 1) + (odd_code != 0 ? 2 : 0));
        label ^= odd_code;
      }
    });
  }

  ViterbiMemory& memory_;
  int rows_, groups_;
};

// The residues of the column whose costs are set. All threads of the CTA, kViterbiThreads<kHeldBits> or more.
template <int kHeldBits>
__device__ void find_residues(ViterbiMemory& memory, int trellis_bits, int rows) {
  auto solve = [&]<int kBits>(std::integral_constant<int, kBits>) {
    using Viterbi = ColumnViterbi<kBits, kHeldBits>;
    if (threadIdx.x < Viterbi::kThreads) Viterbi(memory, rows).solve();
  };
  __syncthreads();
  switch (trellis_bits) {
    case 2: solve(std::integral_constant<int, 2>{}); break;
    case 3: solve(std::integral_constant<int, 3>{}); break;
    case 4: solve(std::integral_constant<int, 4>{}); break;
    case 5: solve(std::integral_constant<int, 5>{}); break;
    case 6: solve(std::integral_constant<int, 6>{}); break;
    case 7: solve(std::integral_constant<int, 7>{}); break;
    case 8: solve(std::integral_constant<int, 8>{}); break;
    default: break;
  }
  __syncthreads();
}

}  // namespace thimble
