// slope_viterbi.cuh: Viterbi down a column on the device, one thread per state. Instead of tracing back row by row,
// each path carries its parities along, and the state it had at the start of its chunk of rows ("register exchange"):
// what remains is one step back per chunk, and steps forward in all chunks at once.
#pragma once

#include <cuda_runtime.h>

#include "gptq/slope/trellis_branches.h"
#include "runtime/codes/trellis.h"

namespace thimble {

constexpr int kSegmentRows = static_cast<int>(kTrellisRows);
constexpr int kMostStates = 1 << kMaxTrellisBits;

// A path's history in 32 bits: the state at the start of its chunk, and the parity of each row since.
constexpr int kChunk = 32 - kMaxTrellisBits;
constexpr int kChunks = (kSegmentRows + kChunk - 1) / kChunk;

// A state's best path so far; read and written in one piece.
struct alignas(8) Path {
  float cost;
  uint32_t history;
};

// Where a state's path lies in shared memory: states that are alike in their lowest two bits side by side, each such
// part 4 places apart from a multiple of the 16 that all banks hold. The states that lead to a warp's states in two
// rows are then neighbours, and both what it reads and what it writes touches each bank as seldom as can be.
constexpr int kPart = kMostStates / 4 + 4, kPlaces = 4 * kPart;
__device__ inline uint32_t place_of(uint32_t state) { return state / 4 + state % 4 * kPart; }

// What a column's Viterbi reads and writes, in shared memory.
struct ViterbiMemory {
  float4 costs[kSegmentRows];                // by residue of the level
  Path paths[2][kPlaces];                    // before even and odd pairs of rows, by place_of()
  uint32_t histories[kChunks][kMostStates];  // of the best path to each state after each chunk
  uint8_t residues[kSegmentRows];            // out
};

// How a state is reached: from the states at two places, by an even and an odd code of one set.
struct Merge {
  uint32_t even, odd;
  int set;

  __device__ Merge(const TrellisMerges& merges, uint32_t state)
      : even(place_of(merges.from(state, 0))), odd(place_of(merges.from(state, 1))), set(merges.set(state)) {}
};

// The better way to a state down the row that is the chunk's number `row`. costs: of that row.
__device__ inline Path better(Path even, Path odd, const float4& costs, int set, int row) {
  even.cost += set == 0 ? costs.x : costs.y;
  odd.cost += set == 0 ? costs.z : costs.w;
  odd.history |= 1u << row;
  return odd.cost < even.cost ? odd : even;
}

// All paths down `rows` rows, by the first max(32, states) threads of the CTA: two rows at a time, for which each
// thread looks at both states that lead to its own as well. That halves the barriers and what passes through shared
// memory.
template <bool kOneWarp>
__device__ void extend_paths(ViterbiMemory& memory, Trellis trellis, int rows) {
  static_assert(kChunk % 2 == 0 && kSegmentRows % 2 == 0);
  const int states = static_cast<int>(trellis.states());
  const uint32_t state = threadIdx.x % states;  // fewer states than lanes: lanes do the same and write the same
  const TrellisMerges merges(trellis);
  const Merge merge(merges, state);
  const Merge before_even(merges, merges.from(state, 0)), before_odd(merges, merges.from(state, 1));
  const uint32_t own = place_of(state);
  auto wait = [&] {
    if constexpr (kOneWarp)
      __syncwarp();
    else
      asm volatile("barrier.sync 1, %0;" ::"r"(states) : "memory");
  };
  memory.paths[0][own] = {state == 0 ? 0 : kUnreachable, state << kChunk};
  int place = 0;
  // The best path to the thread's own state, `taken` rows from `row` on.
  auto store = [&](int row, Path path, int taken) {
    place += taken;
    if (place == kChunk || row + taken == rows) {
      memory.histories[row / kChunk][state] = path.history;
      path.history = state << kChunk;
      place = 0;
    }
    memory.paths[(row / 2 + 1) % 2][own] = path;
  };
  for (int row = 0; row + 1 < rows; row += 2) {
    const float4 costs = memory.costs[row], next_costs = memory.costs[row + 1];
    wait();
    const Path* from = memory.paths[row / 2 % 2];
    const Path even_even = from[before_even.even], even_odd = from[before_even.odd], odd_even = from[before_odd.even],
               odd_odd = from[before_odd.odd];
    __syncwarp();  // for the compiler, which would load two and wait before it loads the others
    const Path even = better(even_even, even_odd, costs, before_even.set, place);
    const Path odd = better(odd_even, odd_odd, costs, before_odd.set, place);
    store(row, better(even, odd, next_costs, merge.set, place + 1), 2);
  }
  if (rows % 2 == 0) return;
  wait();
  const Path* from = memory.paths[rows / 2 % 2];
  store(rows - 1, better(from[merge.even], from[merge.odd], memory.costs[rows - 1], merge.set, place), 1);
}

// The residues of the best path's levels; by one warp.
__device__ inline void trace_back(ViterbiMemory& memory, Trellis trellis, int rows) {
  const int lane = threadIdx.x, states = static_cast<int>(trellis.states());
  float cost = INFINITY;
  uint32_t state = 0;
  const Path* paths = memory.paths[(rows + 1) / 2 % 2];
  for (int s = lane; s < states; s += 32)
    if (paths[place_of(s)].cost < cost) cost = paths[place_of(s)].cost, state = s;
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const float other_cost = __shfl_xor_sync(~0u, cost, distance);
    const uint32_t other = __shfl_xor_sync(~0u, state, distance);
    if (other_cost < cost || (other_cost == cost && other < state)) cost = other_cost, state = other;
  }
  static_assert(kChunks <= 32);
  uint32_t own = 0;  // lane l: the history of chunk l
  for (int chunk = (rows - 1) / kChunk; chunk >= 0; --chunk) {
    const uint32_t history = memory.histories[chunk][state];
    if (chunk == lane) own = history;
    state = history >> kChunk;
  }
  state = own >> kChunk;
  for (int row = lane * kChunk; row < min(rows, (lane + 1) * kChunk); ++row, own >>= 1) {
    const int parity = static_cast<int>(own & 1);
    memory.residues[row] = static_cast<uint8_t>(Trellis::set(state) + 2 * parity);
    state = trellis.next(state, parity);
  }
}

}  // namespace thimble
