// slope_segments.cuh: a CTA solves a segment of the trellis, all columns of it, block by block. Columns come in blocks
// of 64, whose weights are W less what the errors of all earlier columns demand (left-looking, as in gptq_solver.cu),
// and those in panels. R = output rows, K = input columns, P = K rounded up to a multiple of kTile (f64_tile.cuh).
// Where segments are few, each CTA that solves one has helpers, the other CTAs of its cluster: while it solves a block,
// they sum for the next one what the blocks before demand, in the same order.
#pragma once

#include "gptq/factor/hessian_factor.cuh"
#include "gptq/slope/slope_solver.h"
#include "gptq/slope/slope_viterbi.cuh"
#include "runtime/cuda/kernels/cuda_cluster.cuh"

namespace thimble::slope_segments {

constexpr int kThreads = kTileThreads;
constexpr int kRowsPerThread = kSegmentRows / kThreads;
constexpr int kPanel = 8;
constexpr int kHelpedCluster = 8;  // CTAs: one that solves, and its helpers
static_assert(kViterbiThreads <= kThreads && kSegmentRows % kThreads == 0);

// One matrix; pointers to device memory.
struct DeviceLayer {
  DeviceFactor factor;
  float* weights;  // (R, K); once these are solved, codes (R, K) in fewer bytes
  int32_t rows;    // R
  int32_t trellis_bits;
  float rate_weight, cost_scale;
  AxisStep *row_steps, *column_steps;  // (R), (K)
  int32_t* codes;                      // (R, K) out; before that, weights as they are stored
  RowSums* sums;                       // (R) out
  // Out: a row and a column (row * K + column) whose target is not finite, or -1.
  int64_t* refused;
  int32_t* widest;  // out: an or of all codes, of negative ones' complements
};

// A segment of the trellis: what one CTA solves at a time.
struct SlopeItem {
  int32_t layer;
  int32_t first_row;
};

struct PanelColumn {
  int32_t column;
  AxisStep step;
  double inverse_u;  // of the factor's diagonal
};

struct SolverMemory {
  union {
    double slabs[kTileSharedBytes / sizeof(double)];
    struct {
      double panel[kPanel][kSegmentRows];  // weights, then errors
      ViterbiMemory viterbi;
    };
  };
  double u[kPanel][kTile];  // rows of U of the panel's columns, from the start of the block
  PanelColumn columns[kPanel];
};

// Scratch of a CTA.
struct Slot {
  double* errors;  // (kSegmentRows, P)
  double* block;   // (kTile, kSegmentRows): weights of a block, column by column
  double* ahead;   // (2, kSegmentRows, kTile): sums of helpers for even and odd blocks; null without helpers

  static __host__ __device__ int64_t elements(int64_t padded, bool has_helpers) {
    return (kTile + padded + (has_helpers ? 2 * kTile : 0)) * kSegmentRows;
  }
  __device__ Slot(double* memory, int64_t padded, bool has_helpers)
      : errors(memory + kTile * kSegmentRows),
        block(memory),
        ahead(has_helpers ? errors + padded * kSegmentRows : nullptr) {}
  // Of the rows from `tile` on, for the block of columns from `start` on.
  __device__ double* sums_ahead(int start, int tile) const {
    return ahead + (start / kTile % 2 * kSegmentRows + tile) * kTile;
  }
};

// One thread's rows of a segment.
class RowSolver {
 public:
  __device__ RowSolver(const DeviceLayer& layer, const float* rates, int first_row, int rows)
      : layer_(layer), rates_(rates), first_row_(first_row), rows_(rows) {
    for_rows([&](int i, int row) { steps_[i] = layer.row_steps[first_row_ + row]; });
  }

  // body(i, row): i-th of the thread's rows, counted from the segment's first.
  template <typename Body>
  __device__ void for_rows(const Body& body) const {
#pragma unroll
    for (int i = 0; i < kRowsPerThread; ++i)
      if (int row = static_cast<int>(threadIdx.x) + i * kThreads; row < rows_) body(i, row);
  }

  __device__ void begin_column(const PanelColumn& column) {
    column_ = column.column;
    column_step_ = column.step;
    for_rows([&](int i, int row) { weights_[i] = layer_.weights[at(row)]; });  // here already, for they take long
  }

  // The column's branches, when there is a trellis. targets: (rows) weights.
  __device__ void find_branches(const double* targets, ViterbiMemory& memory) {
    for_rows([&](int i, int row) {
      const double target = level_target(i, row, targets[row]);
      const LevelCosts cost = level_costs(i);
      const int32_t first = first_neighbour(target);
      float costs[kBranches];
#pragma unroll
      for (int32_t branch = 0; branch < kBranches; ++branch) {
        const LevelChoice choice = cheapest_level(target, cost, neighbour(first, branch), kBranches);
        costs[branch] = choice.cost;
        levels_[i][branch] = choice.level;
      }
      memory.set_costs(row, costs, layer_.cost_scale);
    });
  }

  // Stores the column's codes; targets become errors.
  __device__ void finish_column(double* targets, double inverse_u, const ViterbiMemory& memory) {
    for_rows([&](int i, int row) {
      const int32_t level =
          layer_.trellis_bits == 0 ? cheapest_even_level(i, row, targets[row]) : found_level(i, memory.residues[row]);
      const float value = __fmul_rn(__fmul_rn(static_cast<float>(level), steps_[i].size), column_step_.size);
      targets[row] = (targets[row] - value) * inverse_u;
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
    for_rows([&](int i, int row) { layer_.sums[first_row_ + row] = sums_[i]; });
  }

 private:
  __device__ LevelCosts level_costs(int i) const {
    return {rates_ + rate_class(steps_[i].scale + column_step_.scale) * RateTable::kLevels, layer_.rate_weight};
  }

  __device__ int64_t at(int row) const {
    return static_cast<int64_t>(first_row_ + row) * layer_.factor.columns + column_;
  }

  __device__ int32_t cheapest_even_level(int i, int row, double weight) const {
    const double target = level_target(i, row, weight);
    return cheapest_level(target, level_costs(i), nearest_even_level(target), 2).level;
  }

  __device__ int32_t found_level(int i, int residue) const {
    int32_t level = levels_[i][0];
#pragma unroll
    for (int branch = 1; branch < kBranches; ++branch)
      if (residue == branch) level = levels_[i][branch];
    return level;
  }

  __device__ double level_target(int i, int row, double weight) const {
    if (!isfinite(weight)) {
      // The row's first: what follows in it is the fault of that one.
      if (*layer_.refused < 0) *layer_.refused = at(row);
      return 0;
    }
    return reachable_target(weight * (steps_[i].inverse * column_step_.inverse));
  }

  __device__ void store(int i, int row, int32_t level, float value, double error) {
    const double difference = static_cast<double>(weights_[i]) - value;
    layer_.codes[at(row)] = level >> 1;  // level = 2 * code + set
    sums_[i].squared_error += difference * difference;
    sums_[i].weighted_loss += error * error;
    sums_[i].bits += level_costs(i).class_bits[RateTable::column(level)];
  }

  const DeviceLayer& layer_;
  const float* rates_;
  int first_row_, rows_;
  int column_ = 0;
  AxisStep column_step_{};
  float weights_[kRowsPerThread];              // of the column, as the layer has them
  int32_t levels_[kRowsPerThread][kBranches];  // of its branches
  AxisStep steps_[kRowsPerThread] = {};
  RowSums sums_[kRowsPerThread];
};

// Rows that only fill the last tile have no errors.
__device__ void clear_padding(const Slot& slot, int rows, int64_t padded) {
  for (int64_t i = rows * padded + threadIdx.x; i < round_up(rows, kTile) * padded; i += kThreads) slot.errors[i] = 0;
  __syncthreads();
}

// Columns [start, start + kTile) of the segment's weights less what earlier columns' errors demand. Helpers know all of
// these but the last block's.
__device__ void load_block(const DeviceLayer& layer, int first_row, int rows, int64_t padded, int start,
                           const Slot& slot, double* slabs) {
  for (int tile = 0; tile < rows; tile += kTile) {
    TileAccumulator correction;
    int known = 0;
    if (slot.ahead && start > kTile) {
      known = start - kTile;
      correction.load(slot.sums_ahead(start, tile), kTile);
    }
    correction.add_long_product(slot.errors + tile * padded + known, padded,
                                layer.factor.upper + known * padded + start, padded, start - known, slabs);
    correction.store(slabs, kTileStride, -1);
    __syncthreads();
    for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) {
      const int row = tile + i % kTile, column = i / kTile;
      double value = slabs[i % kTile * kTileStride + column];
      if (row < rows && start + column < layer.factor.live_columns)
        value += layer.weights[static_cast<int64_t>(first_row + row) * layer.factor.columns +
                               layer.factor.order[start + column]];
      slot.block[column * kSegmentRows + row] = value;
    }
    __syncthreads();
  }
}

// One panel: columns [start + panel, start + panel + kPanel). All threads.
__device__ void solve_panel(const DeviceLayer& layer, int rows, int64_t padded, int start, int panel, const Slot& slot,
                            RowSolver& solver, SolverMemory& memory) {
  for (int i = threadIdx.x; i < kPanel * kTile; i += kThreads)
    memory.u[i / kTile][i % kTile] = layer.factor.upper[(start + panel + i / kTile) * padded + start + i % kTile];
  if (const int j = static_cast<int>(threadIdx.x); j < kPanel && start + panel + j < layer.factor.columns) {
    const int64_t k = start + panel + j;
    const int column = layer.factor.order[k];
    memory.columns[j] = {column, layer.column_steps[column], 1 / layer.factor.upper[k * padded + k]};
  }
  solver.for_rows([&](int, int row) {
    for (int j = 0; j < kPanel; ++j) memory.panel[j][row] = slot.block[(panel + j) * kSegmentRows + row];
  });
  __syncthreads();
  for (int j = 0; j < kPanel && start + panel + j < layer.factor.columns; ++j) {
    double* targets = memory.panel[j];
    solver.begin_column(memory.columns[j]);
    if (start + panel + j >= layer.factor.live_columns) {
      solver.finish_dead_column(targets);
      continue;
    }
    if (layer.trellis_bits > 0) {
      solver.find_branches(targets, memory.viterbi);
      find_residues(memory.viterbi, layer.trellis_bits, rows);
    }
    solver.finish_column(targets, memory.columns[j].inverse_u, memory.viterbi);
    solver.for_rows([&](int, int row) {
      const double error = targets[row];
      double weights[kPanel];
#pragma unroll
      for (int k = 1; k < kPanel; ++k)
        if (k > j) weights[k] = memory.panel[k][row] - error * memory.u[j][panel + k];
#pragma unroll
      for (int k = 1; k < kPanel; ++k)
        if (k > j) memory.panel[k][row] = weights[k];
    });
  }
  // The panel's errors reach the block's later columns, and are kept for later blocks.
  solver.for_rows([&](int, int row) {
    double errors[kPanel];
#pragma unroll
    for (int j = 0; j < kPanel; ++j) {
      errors[j] = start + panel + j < layer.factor.columns ? memory.panel[j][row] : 0;
      slot.errors[row * padded + start + panel + j] = errors[j];
    }
    for (int k = panel + kPanel; k < kTile; k += kPanel) {  // as many at once, for loads take long
      double weights[kPanel];
#pragma unroll
      for (int i = 0; i < kPanel; ++i) weights[i] = slot.block[(k + i) * kSegmentRows + row];
#pragma unroll
      for (int j = 0; j < kPanel; ++j)
#pragma unroll
        for (int i = 0; i < kPanel; ++i) weights[i] -= errors[j] * memory.u[j][k + i];
#pragma unroll
      for (int i = 0; i < kPanel; ++i) slot.block[(k + i) * kSegmentRows + row] = weights[i];
    }
  });
  __syncthreads();
}

// Of one segment, beside the CTA that solves it: while that solves the block from `start` on, the sums for the next one
// over all columns before `start`. `helper`: from 0.
__device__ void help(const DeviceLayer& layer, int rows, int64_t padded, int helper, const Slot& slot, double* slabs) {
  for (int start = 0; start < padded; start += kTile) {
    if (const int next = start + kTile; start > 0 && next < padded)
      for (int tile = helper * kTile; tile < rows; tile += (kHelpedCluster - 1) * kTile) {
        TileAccumulator sums;
        sums.add_long_product(slot.errors + tile * padded, padded, layer.factor.upper + next, padded, start, slabs);
        sums.store(slot.sums_ahead(next, tile), kTile);
      }
    cluster_barrier();
  }
}

// Solver s, a CTA or a cluster of kHelpedCluster, solves items s, s + the number of solvers, ...; it owns slot s.
__global__ inline void __launch_bounds__(kThreads, 2)
    solve_slope_kernel(const DeviceLayer* layers, const SlopeItem* items, int64_t item_count, int64_t padded,
                       const float* rates, double* scratch, bool has_helpers) {
  extern __shared__ std::byte shared[];
  SolverMemory& memory = *reinterpret_cast<SolverMemory*>(shared);
  const unsigned ctas = has_helpers ? kHelpedCluster : 1;
  const int64_t first = blockIdx.x / ctas, solvers = gridDim.x / ctas;
  const int helper = static_cast<int>(blockIdx.x % ctas) - 1;  // -1: who solves
  const Slot slot(scratch + first * Slot::elements(padded, has_helpers), padded, has_helpers);
  for (int64_t index = first; index < item_count; index += solvers) {
    const SlopeItem item = items[index];
    const DeviceLayer& layer = layers[item.layer];
    const int rows = min(kSegmentRows, layer.rows - item.first_row);
    if (helper >= 0) {
      help(layer, rows, padded, helper, slot, memory.slabs);
      continue;
    }
    RowSolver solver(layer, rates, item.first_row, rows);
    clear_padding(slot, rows, padded);
    for (int start = 0; start < padded; start += kTile) {
      load_block(layer, item.first_row, rows, padded, start, slot, memory.slabs);
      for (int panel = 0; panel < kTile; panel += kPanel)
        solve_panel(layer, rows, padded, start, panel, slot, solver, memory);
      if (has_helpers) cluster_barrier();
    }
    solver.store_sums();
  }
}

// Codes in fewer bytes, as the host keeps them, in the layer's place of weights. Layers by blockIdx.y.
template <typename Narrow>
__global__ void __launch_bounds__(kThreads) narrow_codes_kernel(const DeviceLayer* layers) {
  const DeviceLayer& layer = layers[blockIdx.y];
  const int64_t count = static_cast<int64_t>(layer.rows) * layer.factor.columns;
  auto* const narrow = reinterpret_cast<Narrow*>(layer.weights);
  int32_t widest = 0;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x; i < count; i += gridDim.x * kThreads) {
    const int32_t code = layer.codes[i];
    widest |= code < 0 ? ~code : code;
    narrow[i] = static_cast<Narrow>(code);
  }
  widest = static_cast<int32_t>(__reduce_or_sync(~0U, static_cast<unsigned>(widest)));
  if (threadIdx.x % 32 == 0 && widest != 0) atomicOr(layer.widest, widest);
}

}  // namespace thimble::slope_segments
