// gptq_solver.cuh: the steps of solve_gptq() and solve_gptq_nvfp4() on the device, for many matrices of equally many
// columns at once.
// R = output rows, K = input columns, B = ceil(K / 16) blocks of a row, P = K rounded up to a multiple of kTile
// (f64_tile.cuh), C = candidates: solutions of a matrix, of which one is kept.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstdint>

#include "gptq/trace/gptq_solver.h"

namespace thimble {

// The grids: what a matrix has of each besides its weights. The scales are chosen before any column is solved.
struct RowScaledGrid {
  using Result = GptqResult;
  using Scale = uint16_t;  // fp16 bits, (C, R)
  static constexpr std::array kClips = kClipFractions;
  static int64_t scales(int64_t rows, int64_t) { return rows; }  // of one candidate

  int32_t max_code;
};
struct Nvfp4Grid {
  using Result = Nvfp4GptqResult;
  using Scale = uint8_t;  // UE4M3, (C, R, B)
  static constexpr std::array kClips = {1.0};
  static int64_t scales(int64_t rows, int64_t columns) { return rows * nvfp4_blocks(columns); }

  float tensor_scale;
};
template <typename Grid>
constexpr int kCandidates = static_cast<int>(Grid::kClips.size());

// One matrix; pointers to device memory.
template <typename Grid>
struct SolverJob {
  float* weights;        // (R, K)
  const double* upper;   // (P, P) U of the Hessian (cholesky.cuh)
  const int32_t* order;  // (K) columns in the order of U
  int32_t rows;          // R
  int32_t columns;       // K
  int32_t live_columns;  // columns order[live_columns ...] are dead
  Grid grid;
  typename Grid::Scale* scales;
  int8_t* codes;            // (C, R, P) in the order of U
  double* squared_errors;   // (C, R) sum over columns of (w - w')^2
  double* weighted_losses;  // (C, R) sum over columns of E^2
};

// A tile of rows of one candidate: what one CTA solves at a time.
struct SolverItem {
  int32_t job;
  int32_t candidate;
  int32_t first_row;
};

// Enqueues row_scales() of every job for all clips; a scale that fp16 cannot hold becomes infinity.
void compute_scales(const SolverJob<RowScaledGrid>* jobs, int64_t count, int64_t most_rows, cudaStream_t stream);
// Enqueues best_nvfp4_block_scale() of all blocks of every job.
void compute_scales(const SolverJob<Nvfp4Grid>* jobs, int64_t count, int64_t most_rows, cudaStream_t stream);

// Both grids are instantiated.
// Enqueues algorithm 1 for all items. `errors` is scratch of `slots` times solver_slot_elements(P); no more than
// `slots` items are solved at a time.
template <typename Grid>
void solve_items(const SolverJob<Grid>* jobs, const SolverItem* items, int64_t item_count, int64_t padded_columns,
                 double* errors, int64_t slots, cudaStream_t stream);
int64_t solver_slot_elements(int64_t padded_columns);
// As many as the current device can work on at a time.
template <typename Grid>
int64_t solver_slots();

// Enqueues codes of one candidate as RowScaledCodes and Nvfp4Codes have them, columns in their original order, and
// returns where they lie: in the memory of the weights, which solving no longer needs.
const int8_t* finish_codes(const SolverJob<RowScaledGrid>& job, int candidate, int64_t padded_columns,
                           cudaStream_t stream);
const uint8_t* finish_codes(const SolverJob<Nvfp4Grid>& job, int candidate, int64_t padded_columns,
                            cudaStream_t stream);

}  // namespace thimble
