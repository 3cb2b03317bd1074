// slope_viterbi.cuh: Viterbi along a column on the device, from both ends at once (trellis_branches.h), in blocks of
// three rows, in which each step is a butterfly within a thread's registers (trellis_labels.h); between blocks paths go
// through shared memory.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>

#include "gptq/slope/trellis_branches.h"
#include "gptq/slope/trellis_labels.h"
#include "runtime/codes/trellis.h"

namespace thimble {

constexpr int kSegmentRows = static_cast<int>(kTrellisRows);
constexpr int kPaddedRows = kSegmentRows + path_rows(kMaxTrellisBits);  // those that fill the last group go beyond
constexpr int kMostStates = 1 << kMaxTrellisBits;
constexpr int kHeldStates = 4;  // a thread's
constexpr int kViterbiThreads = 2 * std::max(32, kMostStates / kHeldStates);

// What the codes of a set add to a path in a row.
struct alignas(8) CodeCosts {
  uint32_t even, odd;
};

// What a column's Viterbi reads and writes, in shared memory.
struct ViterbiMemory {
  CodeCosts costs[kPaddedRows][2];  // by set
  // From each end: the best paths to the states before even and odd blocks, by label.
  alignas(16) uint32_t paths[2][2][kMostStates];
  // (groups, states): by a state after a group, in the order in which it is taken, what the path there remembers.
  uint8_t remembered[(kPaddedRows / path_rows(kMaxTrellisBits)) * kMostStates];
  // From each end: the best path's states before each group, and where paths meet.
  uint8_t trail[2][(kPaddedRows / 2 + 1) / 2 + 2];
  uint8_t residues[kPaddedRows];  // out: of the best path's levels

  __device__ void set_costs(int row, const float (&by_residue)[kBranches], float scale) {
    const auto [c0, c1, c2, c3] = by_residue;
    const float least = fminf(fminf(c0, c1), fminf(c2, c3));
    costs[row][0] = {path_cost(c0 - least, scale), path_cost(c2 - least, scale)};
    costs[row][1] = {path_cost(c1 - least, scale), path_cost(c3 - least, scale)};
  }
};
static_assert(kPaddedRows / 2 * 4 <= kPaddedRows / path_rows(kMaxTrellisBits) * kMostStates &&
                  (kPaddedRows / 3) * 32 <= kPaddedRows / path_rows(kMaxTrellisBits) * kMostStates,
              "what is remembered of groups of 2 and 3 rows fits, too");

// The way from one end to where paths meet: from the first row on, or kFromLast, in the order in which rows are taken.
// What a code costs depends on the state before its row alone, and of the states that a row's two codes lead to or
// from, which are those of a label and of its partner, all have one set: so both ways are the same, but for the labels.
template <int kBits, bool kFromLast>
class ViterbiWalk {
 public:
  using Labels = TrellisLabels<kBits, kFromLast>;
  static constexpr int kStride = Labels::kStates / kHeldStates;
  // Threads that call this, with consecutive numbers `thread` from 0; those of a warp that have no states do what
  // others do.
  static constexpr int kThreads = std::max(32, kStride);

  __device__ ViterbiWalk(ViterbiMemory& memory, int rows, int thread)
      : memory_(memory),
        rows_(rows),
        all_groups_(static_cast<int>(path_groups(rows, kBits))),
        groups_(kFromLast ? all_groups_ - meeting_group(all_groups_) : meeting_group(all_groups_)),
        thread_(thread) {}

  // The best paths, by label, once they are extended.
  __device__ const uint32_t* paths() const { return memory_.paths[kFromLast][groups_ * kBlocks % 2]; }

  __device__ void extend_paths() {
    constexpr Labels labels;
    // The thread's labels are those of `own` and the kHeldStates - 1 after it.
    const uint32_t place = static_cast<uint32_t>(thread_) % kStride, own = place * kHeldStates;
    uint32_t sets[kRows], next[kHeldStates], left[kHeldStates];
#pragma unroll
    for (int row = 0; row < kRows; ++row) sets[row] = __popc(own & labels.sets[row]) & 1;
#pragma unroll
    for (uint32_t i = 0; i < kHeldStates; ++i) {
      next[i] = Labels::map(labels.onward, own | i);
      left[i] = Labels::map(labels.left, own | i);
      const uint32_t entered = Labels::map(labels.entered, own | i);
      memory_.paths[kFromLast][0][own | i] = (kFromLast || entered == 0 ? 0 : kUnreachable) | entered;
    }
    if (const int row = rows_ + thread_; kFromLast && row < all_groups_ * path_rows(kBits))
      memory_.costs[row][0] = memory_.costs[row][1] = {0, kUnreachable};
    wait();

    const int blocks = groups_ * kBlocks;
    CodeCosts even_costs[kRows][2], odd_costs[kRows][2];  // of a block: [1] of the set that is not that of `own`
    auto load_costs = [&](int block, CodeCosts(&costs)[kRows][2]) {
#pragma unroll
      for (int row = 0; row < kRows; ++row)
#pragma unroll
        for (uint32_t other = 0; other < 2; ++other)
          costs[row][other] = memory_.costs[row_of(min(block, blocks - 1) * kRows + row)][sets[row] ^ other];
    };
    uint8_t* remembered = &remembered_after(0, 0);
    const uint32_t zero = threadIdx.y;  // which the compiler does not know
    auto extend = [&](int block, const CodeCosts(&costs)[kRows][2], CodeCosts(&next_costs)[kRows][2], bool is_last,
                      const uint32_t* from, uint32_t* to) {
      // The better path in a row to the state of label own ^ difference.
      auto step = [&](int row, uint32_t difference, uint32_t even, uint32_t odd) {
        const CodeCosts& cost = costs[row][__popc(difference & labels.sets[row]) & 1];
        return __viaddmin_u32(odd, cost.odd, even + cost.even);
      };
      uint32_t held[kHeldStates], partners[kHeldStates];
      load(from + own, held);
      if constexpr (kIsFirstShared) {
        load(from + (own ^ kHeldStates), partners);
        held[0] |= partners[0] & zero;  // or else the compiler waits for the first before it loads the second
      }
      load_costs(block + 1, next_costs);
      if constexpr (kIsFirstShared) {
#pragma unroll
        for (uint32_t i = 0; i < kHeldStates; ++i) held[i] = step(0, i, held[i], partners[i]);
      }
#pragma unroll
      for (int row = kIsFirstShared ? 1 : 0; row < kRows; ++row)
#pragma unroll
        for (uint32_t i = 0; i < kHeldStates; ++i) {
          const uint32_t other = i ^ 1u << Labels::bit(row);
          if (other < i) continue;
          const uint32_t even = held[i], odd = held[other];
          held[i] = step(row, i, even, odd);
          held[other] = step(row, other, odd, even);
        }
      if (!is_last) {
#pragma unroll
        for (uint32_t i = 0; i < kHeldStates; ++i) to[next[i]] = held[i];
      } else {
#pragma unroll
        for (uint32_t i = 0; i < kHeldStates; ++i) to[next[i]] = (held[i] & ~kPathState) | left[i];
#pragma unroll
        for (uint32_t i = 0; i < kHeldStates; ++i) remembered[left[i]] = static_cast<uint8_t>(held[i]);
        remembered += Labels::kStates;
      }
      wait();
    };
    auto& [even, odd] = memory_.paths[kFromLast];
    if (blocks > 0) load_costs(0, even_costs);
#pragma unroll 1
    for (int block = 0; block < blocks; block += 2) {
      extend(block, even_costs, odd_costs, kBlocks == 1, even, odd);
      if (kBlocks == 2 || block + 1 < blocks) extend(block + 1, odd_costs, even_costs, true, odd, even);
    }
  }

  // The residues of the path to or from this state where paths meet. Following it is one chain of loads: many lanes
  // that begin at guessed states would find the same only once their paths merged, which takes about as long.
  __device__ void trace_back(uint32_t end) {
    uint8_t* const trail = memory_.trail[kFromLast];
    if (thread_ < 32) {
      uint32_t state = end;
#pragma unroll 4
      for (int group = groups_; group > 0; --group) {
        trail[group] = static_cast<uint8_t>(state);
        state = remembered_after(group - 1, state);
      }
      trail[0] = static_cast<uint8_t>(state);
    }
    wait();
    for (int group = thread_; group < groups_; group += kThreads) store_residues(group, trail[group], trail[group + 1]);
  }

 private:
  static constexpr int kRows = Labels::kRows;
  static constexpr int kBlocks = path_rows(kBits) / kRows;  // of a group
  static_assert(kBlocks * kRows == path_rows(kBits) && (kBlocks == 1 || kBlocks == 2));
  // Whether two threads look at the same states before a block, which differ in the first row's bit, and then have one
  // half of them each.
  static constexpr bool kIsFirstShared = 1 << kRows > kHeldStates;
  static_assert(kHeldStates == 4 && 1 << kRows == kHeldStates << (kIsFirstShared ? 1 : 0));
  static_assert(!kIsFirstShared || 1 << Labels::bit(0) == kHeldStates);

  __device__ static void load(const uint32_t* from, uint32_t (&held)[kHeldStates]) {
    const uint4 four = *reinterpret_cast<const uint4*>(from);
    held[0] = four.x, held[1] = four.y, held[2] = four.z, held[3] = four.w;
  }

  __device__ static void wait() {
    if constexpr (kThreads == 32)
      __syncwarp();
    else
      asm volatile("bar.sync %0, %1;" ::"n"(kFromLast ? 2 : 1), "n"(kThreads) : "memory");
  }

  // Of the row that is taken as this one.
  __device__ int row_of(int taken) const { return kFromLast ? all_groups_ * path_rows(kBits) - 1 - taken : taken; }
  __device__ uint8_t& remembered_after(int group, uint32_t state) const {
    const int place = kFromLast ? meeting_group(all_groups_) + group : group;
    return memory_.remembered[place * static_cast<int>(Labels::kStates) + static_cast<int>(state)];
  }

  // Those of a group's rows, which lead between these states.
  __device__ void store_residues(int group, uint32_t from, uint32_t to) const {
    constexpr Labels labels;
    uint32_t label = Labels::map(labels.entering, from);
    // After the last block only the bits of its own rows differ from those at its start.
    const uint32_t last = Labels::map(labels.leaving, to);
    uint32_t odd_codes[kBlocks] = {};  // by block: those of its rows
    if constexpr (kBlocks == 1) {
      odd_codes[0] = last ^ label;
    } else {
      const uint32_t difference = last ^ Labels::map(labels.onward, label);
#pragma unroll
      for (uint32_t codes = 0; codes <= Labels::kRowBits; ++codes)
        if (const uint32_t rest = difference ^ Labels::map(labels.onward, codes); rest <= Labels::kRowBits)
          odd_codes[0] = codes, odd_codes[1] = rest;
    }
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const uint32_t odd_code = odd_codes[block] & 1u << Labels::bit(row);
        memory_.residues[row_of((group * kBlocks + block) * kRows + row)] =
            static_cast<uint8_t>((__popc(label & labels.sets[row]) & 1) + (odd_code != 0 ? 2 : 0));
        label ^= odd_code;
      }
      label = Labels::map(labels.onward, label);
    }
  }

  ViterbiMemory& memory_;
  int rows_, all_groups_, groups_, thread_;
};

// Both ways, and where they meet.
template <int kBits>
class ColumnViterbi {
  using FromFirst = ViterbiWalk<kBits, false>;
  using FromLast = ViterbiWalk<kBits, true>;

 public:
  static constexpr int kThreads = FromFirst::kThreads + FromLast::kThreads;  // of the CTA, which call solve()

  // The column's residues. Not inlined: callers hold more than fits into registers besides.
  __device__ __noinline__ static void solve(ViterbiMemory& memory, int rows) {
    __builtin_assume(__isShared(&memory));
    const auto thread = static_cast<int>(threadIdx.x);
    FromFirst first(memory, rows, thread);
    FromLast last(memory, rows, thread - FromFirst::kThreads);
    const bool is_first = thread < FromFirst::kThreads;
    if (is_first)
      first.extend_paths();
    else
      last.extend_paths();
    asm volatile("bar.sync 3, %0;" ::"n"(kThreads) : "memory");
    const uint32_t state = meeting_state(first, last);
    if (is_first)
      first.trace_back(state);
    else
      last.trace_back(state);
  }

 private:
  // By label of paths from the first row, linear: that of paths from the last.
  struct Meeting {
    uint32_t from_last[kBits] = {};

    constexpr Meeting() {
      constexpr typename FromFirst::Labels first;
      constexpr typename FromLast::Labels last;
      for (int bit = 0; bit < kBits; ++bit) from_last[bit] = FromLast::Labels::map(last.entering, first.entered[bit]);
    }
  };

  // Where the path of the least cost is, of those the one through the first state. By whole warps.
  __device__ static uint32_t meeting_state(const FromFirst& first, const FromLast& last) {
    constexpr Meeting meeting;
    constexpr uint32_t kStates = FromFirst::Labels::kStates;
    const uint32_t *to = first.paths(), *from = last.paths();
    uint32_t best = ~0u;
#pragma unroll
    for (uint32_t others = 0; others < kStates; others += 32)
      if (const uint32_t label = threadIdx.x % 32 | others; label < kStates)
        best = min(best, to[label] + (from[FromFirst::Labels::map(meeting.from_last, label)] & ~kPathState));
    return __reduce_min_sync(~0u, best) & kPathState;
  }
};

// The residues of the column whose costs are set. All threads of the CTA, kViterbiThreads or more.
__device__ inline void find_residues(ViterbiMemory& memory, int trellis_bits, int rows) {
  auto solve = [&]<int kBits>(std::integral_constant<int, kBits>) {
    using Viterbi = ColumnViterbi<kBits>;
    if (threadIdx.x < Viterbi::kThreads) Viterbi::solve(memory, rows);
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
