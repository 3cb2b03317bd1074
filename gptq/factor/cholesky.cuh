// cholesky.cuh: inverse_upper_cholesky() on the device, for many matrices at once.
// The same algorithm as cholesky.cpp: with J the reversal of rows or columns and J A J = L L^T, U = J L^-1 J.
// Matrices are padded to whole tiles by an identity, which changes nothing in the rest.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace thimble {

// One matrix. K = its columns, P = K rounded up to a multiple of kTile (f64_tile.cuh); pointers to device memory.
struct CholeskyJob {
  const double* hessian;  // K * (K + 1) / 2: lower triangle of H, packed row after row
  const int32_t* order;   // (K) columns in the order of U
  int32_t columns;        // K
  int32_t live_columns;   // columns order[live_columns ...] are dead: a diagonal of 1, 0 beside it
  double added;           // to every diagonal element
  double* upper;          // (P, P) out: U, zeros below the diagonal, 1 on the padding's; before that, A and L
  double* inverse;        // (P, P) scratch: L^-1
  double* pivot_floors;   // (P) scratch: smaller pivots are rounding
  int32_t* failed;        // out: 1 when A is not positive definite to working precision (then U is rubbish), else 0
};

// Enqueues A = H + added * I in the given order, and its U with A^-1 = U^T U. `jobs` lies in device memory; all have
// the same P. Each U depends on its own job only, bit for bit.
void inverse_upper_cholesky(const CholeskyJob* jobs, int64_t count, int64_t padded_columns, cudaStream_t stream);

}  // namespace thimble
