// slope_solver.cuh: the steps of solve_slope() on the device, for many matrices of equally many columns at once.
// R = output rows, K = input columns, P = K rounded up to a multiple of kTile (f64_tile.cuh).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "gptq/slope/slope_parts.h"

namespace thimble {

// One matrix; pointers to device memory.
struct SlopeSolverJob {
  const float* weights;  // (R, K)
  const double* upper;   // (P, P) U of the Hessian (cholesky.cuh)
  const int32_t* order;  // (K) columns in the order of U
  int32_t rows;          // R
  int32_t columns;       // K
  int32_t live_columns;  // columns order[live_columns ...] are dead
  int32_t trellis_bits;
  float rate_weight;
  const float *row_sizes, *row_scales;        // (R) as AxisSteps has them
  const float *column_sizes, *column_scales;  // (K)
  int32_t* codes;                             // (R, K) out
  RowSums* sums;                              // (R) out
  // Out: a row and a column (row * K + column) whose target is not finite, or -1.
  int64_t* refused;
};

// A segment of the trellis: what one CTA solves at a time.
struct SlopeItem {
  int32_t job;
  int32_t first_row;
};

// Enqueues algorithm 1 for all items. `rates`: of rate_model.h's table. `scratch`: `slots`
// times slope_slot_bytes(P); no more items than slots are solved at a time.
void solve_slope_items(const SlopeSolverJob* jobs, const SlopeItem* items, int64_t item_count, int64_t padded_columns,
                       const float* rates, std::byte* scratch, int64_t slots, cudaStream_t stream);
size_t slope_slot_bytes(int64_t padded_columns);
// As many as the current device can work on at a time.
int64_t slope_slots();

}  // namespace thimble
