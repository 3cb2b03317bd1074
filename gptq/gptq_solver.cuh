// gptq_solver.cuh: the steps of solve_gptq() on the device, for many matrices of equally many columns at once.
// R = output rows, K = input columns, P = K rounded up to a multiple of kTile (f64_tile.cuh), C = clips.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "gptq/gptq_solver.h"

namespace thimble {

constexpr int kClips = static_cast<int>(kClipFractions.size());

// One matrix; pointers to device memory.
struct SolverJob {
  const float* weights;  // (R, K)
  const double* upper;   // (P, P) U of the Hessian (cholesky.cuh)
  const int32_t* order;  // (K) columns in the order of U
  int32_t rows;          // R
  int32_t columns;       // K
  int32_t live_columns;  // columns order[live_columns ...] are dead
  int32_t max_code;
  uint16_t* row_scales;     // (C, R) fp16 bits
  int8_t* codes;            // (C, R, P) in the order of U
  double* squared_errors;   // (C, R) sum over columns of (w - w')^2
  double* weighted_losses;  // (C, R) sum over columns of E^2
};

// A tile of rows under one clip: what one CTA solves at a time.
struct SolverItem {
  int32_t job;
  int32_t clip;
  int32_t first_row;
};

// Enqueues row_scales() of every job for all clips; a scale that fp16 cannot hold becomes infinity.
void compute_row_scales(const SolverJob* jobs, int64_t count, int64_t most_rows, cudaStream_t stream);

// Enqueues algorithm 1 for all items. `errors` is scratch of `slots` times solver_slot_elements(P); no more than
// `slots` items are solved at a time.
void solve_items(const SolverJob* jobs, const SolverItem* items, int64_t item_count, int64_t padded_columns,
                 double* errors, int64_t slots, cudaStream_t stream);
int64_t solver_slot_elements(int64_t padded_columns);
// As many as the current device can work on at a time.
int64_t solver_slots();

// Enqueues codes (R, K), columns in their original order, of one clip.
void restore_column_order(const SolverJob& job, int clip, int64_t padded_columns, int8_t* codes, cudaStream_t stream);

}  // namespace thimble
