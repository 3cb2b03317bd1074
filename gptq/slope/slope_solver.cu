// slope_solver.cu: slope_solver.cpp with one segment of the trellis per CTA. Columns come in blocks of 64, whose
// weights are W less what the errors of all earlier columns demand (left-looking, as in gptq_solver.cu), and those in
// panels. Viterbi down a column is one thread per state. Instead of tracing back row by row, each path carries its
// parities along, and the state it had at the start of its chunk of rows ("register exchange"): what remains is one
// step back per chunk, and steps forward in all chunks at once.
#include <algorithm>

#include "gptq/factor/f64_tile.cuh"
#include "gptq/slope/slope_solver.cuh"
#include "gptq/slope/trellis_branches.h"
#include "runtime/codes/trellis.h"
#include "runtime/cuda/kernels/cuda_context.cuh"

namespace thimble {
namespace {

constexpr int kThreads = kTileThreads;
constexpr int kRows = static_cast<int>(kTrellisRows);
constexpr int kRowsPerThread = kRows / kThreads;
constexpr int kPanel = 8;
constexpr int kMostStates = 1 << kMaxTrellisBits;
static_assert(kMostStates <= kThreads && kRows % kThreads == 0);

// A path's history in 32 bits: the state at the start of its chunk, and the parity of each row since.
constexpr int kChunk = 32 - kMaxTrellisBits;
constexpr int kChunks = (kRows + kChunk - 1) / kChunk;
constexpr float kUnreachable = 1e30F;

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
  float4 costs[kRows];                       // by residue of the level
  Path paths[2][kPlaces];                    // before even and odd pairs of rows, by place_of()
  uint32_t histories[kChunks][kMostStates];  // of the best path to each state after each chunk
  uint8_t residues[kRows];                   // out
};

struct SolverMemory {
  union {
    double slabs[kTileSharedBytes / sizeof(double)];
    struct {
      double panel[kPanel][kRows];  // weights, then errors
      ViterbiMemory viterbi;
    };
  };
  double u[kPanel][kTile];  // rows of U of the panel's columns, from the start of the block
};

// Scratch of a CTA.
struct Slot {
  double* errors;  // (kRows, P)
  double* block;   // (kTile, kRows): weights of a block, column by column
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
  static_assert(kChunk % 2 == 0 && kRows % 2 == 0);
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
__device__ void trace_back(ViterbiMemory& memory, Trellis trellis, int rows) {
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

// One thread's rows of a segment.
class RowSolver {
 public:
  __device__ RowSolver(const SlopeSolverJob& job, const float* rates, int first_row, int rows)
      : job_(job), rates_(rates), first_row_(first_row), rows_(rows) {
    for_rows([&](int i, int row) {
      size_[i] = job.row_sizes[first_row_ + row];
      scale_[i] = job.row_scales[first_row_ + row];
    });
  }

  // body(i, row): i-th of the thread's rows, counted from the segment's first.
  template <typename Body>
  __device__ void for_rows(const Body& body) const {
#pragma unroll
    for (int i = 0; i < kRowsPerThread; ++i)
      if (int row = static_cast<int>(threadIdx.x) + i * kThreads; row < rows_) body(i, row);
  }

  __device__ void begin_column(int column) {
    column_ = column;
    column_size_ = job_.column_sizes[column];
    column_scale_ = job_.column_scales[column];
  }

  // The column's branches, when there is a trellis. targets: (rows) weights.
  __device__ void find_branches(const double* targets, ViterbiMemory& memory) const {
    for_rows([&](int i, int row) {
      const double target = level_target(i, row, targets[row]);
      const LevelCosts cost = level_costs(i);
      const int32_t first = first_neighbour(target);
      float costs[kBranches], least = kUnreachable;
#pragma unroll
      for (int32_t branch = 0; branch < kBranches; ++branch) {
        costs[branch] = cheapest_level(target, cost, neighbour(first, branch), kBranches).cost;
        least = fminf(least, costs[branch]);
      }
      memory.costs[row] = {costs[0] - least, costs[1] - least, costs[2] - least, costs[3] - least};
    });
  }

  // Stores the column's codes; targets become errors.
  __device__ void finish_column(double* targets, double u, const ViterbiMemory& memory) {
    for_rows([&](int i, int row) {
      const double target = level_target(i, row, targets[row]);
      const LevelCosts cost = level_costs(i);
      const int32_t level =
          job_.trellis_bits == 0
              ? cheapest_level(target, cost, nearest_even_level(target), 2).level
              : cheapest_level(target, cost, neighbour(first_neighbour(target), memory.residues[row]), kBranches).level;
      const float value = __fmul_rn(__fmul_rn(static_cast<float>(level), size_[i]), column_size_);
      targets[row] = (targets[row] - value) / u;
      store(i, row, level, value, targets[row]);
    });
  }

  // Codes of 0, no errors.
  __device__ void finish_dead_column(double* targets) {
    for_rows([&](int i, int row) {
      targets[row] = 0;
      store(i, row, 0, 0, 0);
    });
  }

  __device__ void store_sums() const {
    for_rows([&](int i, int row) { job_.sums[first_row_ + row] = sums_[i]; });
  }

 private:
  __device__ LevelCosts level_costs(int i) const {
    return {rates_ + rate_class(scale_[i] + column_scale_) * RateTable::kLevels, job_.rate_weight};
  }

  __device__ double level_target(int i, int row, double weight) const {
    if (!isfinite(weight)) {
      // The row's first: what follows in it is the fault of that one.
      if (*job_.refused < 0) *job_.refused = static_cast<int64_t>(first_row_ + row) * job_.columns + column_;
      return 0;
    }
    return reachable_target(weight / (static_cast<double>(size_[i]) * column_size_));
  }

  __device__ void store(int i, int row, int32_t level, float value, double error) {
    const int64_t at = static_cast<int64_t>(first_row_ + row) * job_.columns + column_;
    const double difference = static_cast<double>(job_.weights[at]) - value;
    job_.codes[at] = level >> 1;  // level = 2 * code + set
    sums_[i].squared_error += difference * difference;
    sums_[i].weighted_loss += error * error;
    sums_[i].bits += level_costs(i).class_bits[RateTable::column(level)];
  }

  const SlopeSolverJob& job_;
  const float* rates_;
  int first_row_, rows_;
  int column_ = 0;
  float column_size_ = 0, column_scale_ = 0;
  float size_[kRowsPerThread] = {}, scale_[kRowsPerThread] = {};
  RowSums sums_[kRowsPerThread];
};

// Rows that only fill the last tile have no errors.
__device__ void clear_padding(const Slot& slot, int rows, int64_t padded) {
  for (int64_t i = rows * padded + threadIdx.x; i < round_up(rows, kTile) * padded; i += kThreads) slot.errors[i] = 0;
  __syncthreads();
}

// Columns [start, start + kTile) of the segment's weights less what earlier columns' errors demand.
__device__ void load_block(const SlopeSolverJob& job, int first_row, int rows, int64_t padded, int start,
                           const Slot& slot, double* slabs) {
  for (int tile = 0; tile < rows; tile += kTile) {
    TileAccumulator correction;
    correction.add_long_product(slot.errors + tile * padded, padded, job.upper + start, padded, start, slabs);
    correction.store(slabs, kTileStride, -1);
    __syncthreads();
    for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) {
      const int row = tile + i % kTile, column = i / kTile;
      double value = slabs[i % kTile * kTileStride + column];
      if (row < rows && start + column < job.live_columns)
        value += job.weights[static_cast<int64_t>(first_row + row) * job.columns + job.order[start + column]];
      slot.block[column * kRows + row] = value;
    }
    __syncthreads();
  }
}

// One panel: columns [start + panel, start + panel + kPanel). All threads.
__device__ void solve_panel(const SlopeSolverJob& job, int rows, int64_t padded, int start, int panel, const Slot& slot,
                            RowSolver& solver, SolverMemory& memory) {
  const Trellis trellis(job.trellis_bits);
  for (int i = threadIdx.x; i < kPanel * kTile; i += kThreads)
    memory.u[i / kTile][i % kTile] = job.upper[(start + panel + i / kTile) * padded + start + i % kTile];
  solver.for_rows([&](int, int row) {
    for (int j = 0; j < kPanel; ++j) memory.panel[j][row] = slot.block[(panel + j) * kRows + row];
  });
  __syncthreads();
  for (int j = 0; j < kPanel && start + panel + j < job.columns; ++j) {
    double* targets = memory.panel[j];
    solver.begin_column(job.order[start + panel + j]);
    if (start + panel + j >= job.live_columns) {
      solver.finish_dead_column(targets);
      continue;
    }
    if (job.trellis_bits > 0) {
      solver.find_branches(targets, memory.viterbi);
      __syncthreads();
      if (trellis.states() <= 32) {
        if (threadIdx.x < 32) extend_paths<true>(memory.viterbi, trellis, rows);
      } else if (threadIdx.x < trellis.states()) {
        extend_paths<false>(memory.viterbi, trellis, rows);
      }
      __syncthreads();
      if (threadIdx.x < 32) trace_back(memory.viterbi, trellis, rows);
      __syncthreads();
    }
    solver.finish_column(targets, memory.u[j][panel + j], memory.viterbi);
    solver.for_rows([&](int, int row) {
      for (int k = j + 1; k < kPanel; ++k) memory.panel[k][row] -= targets[row] * memory.u[j][panel + k];
    });
  }
  // The panel's errors reach the block's later columns, and are kept for later blocks.
  solver.for_rows([&](int, int row) {
    double errors[kPanel];
#pragma unroll
    for (int j = 0; j < kPanel; ++j) {
      errors[j] = start + panel + j < job.columns ? memory.panel[j][row] : 0;
      slot.errors[row * padded + start + panel + j] = errors[j];
    }
    for (int k = panel + kPanel; k < kTile; ++k) {
      double weight = slot.block[k * kRows + row];
#pragma unroll
      for (int j = 0; j < kPanel; ++j) weight -= errors[j] * memory.u[j][k];
      slot.block[k * kRows + row] = weight;
    }
  });
  __syncthreads();
}

// Each CTA solves items blockIdx.x, blockIdx.x + gridDim.x, ...; it owns the slot blockIdx.x.
__global__ void __launch_bounds__(kThreads)
    solve_slope_kernel(const SlopeSolverJob* jobs, const SlopeItem* items, int64_t item_count, int64_t padded,
                       const float* rates, std::byte* scratch, size_t slot_bytes) {
  extern __shared__ std::byte shared[];
  SolverMemory& memory = *reinterpret_cast<SolverMemory*>(shared);
  auto* block = reinterpret_cast<double*>(scratch + blockIdx.x * slot_bytes);
  const Slot slot{block + kTile * kRows, block};
  for (int64_t index = blockIdx.x; index < item_count; index += gridDim.x) {
    const SlopeItem item = items[index];
    const SlopeSolverJob& job = jobs[item.job];
    const int rows = min(kRows, job.rows - item.first_row);
    RowSolver solver(job, rates, item.first_row, rows);
    clear_padding(slot, rows, padded);
    for (int start = 0; start < padded; start += kTile) {
      load_block(job, item.first_row, rows, padded, start, slot, memory.slabs);
      for (int panel = 0; panel < kTile; panel += kPanel)
        solve_panel(job, rows, padded, start, panel, slot, solver, memory);
    }
    solver.store_sums();
  }
}

}  // namespace

size_t slope_slot_bytes(int64_t padded_columns) {
  return static_cast<size_t>((kTile + padded_columns) * kRows) * sizeof(double);
}

int64_t slope_slots() {
  int per_processor = 0;
  check_cuda(
      cudaFuncSetAttribute(solve_slope_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(SolverMemory)));
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_processor, solve_slope_kernel, kThreads,
                                                           sizeof(SolverMemory)));
  return static_cast<int64_t>(multiprocessors()) * per_processor;
}

void solve_slope_items(const SlopeSolverJob* jobs, const SlopeItem* items, int64_t item_count, int64_t padded_columns,
                       const float* rates, std::byte* scratch, int64_t slots, cudaStream_t stream) {
  launch_kernel(solve_slope_kernel,
                {static_cast<unsigned>(std::min(item_count, slots)), kThreads, static_cast<int>(sizeof(SolverMemory))},
                stream, jobs, items, item_count, padded_columns, rates, scratch, slope_slot_bytes(padded_columns));
}

}  // namespace thimble
