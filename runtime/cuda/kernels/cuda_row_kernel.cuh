// cuda_row_kernel.cuh: one warp per row, as most row operations want it. An operation is a struct of its arguments with
//   __device__ void operator()(int64_t row, int lane) const
// Lane l reads columns l, l + 32, ... (coalesced); sums over a row take the fixed tree of sum_over_lanes().
#pragma once

#include "runtime/cuda/kernels/cuda_context.cuh"
#include "runtime/cuda/kernels/cuda_numeric.cuh"
#include "runtime/cuda/kernels/cuda_overlap.cuh"

namespace thimble {

constexpr int kRowKernelWarps = 8;

template <typename Operation>
__global__ void __launch_bounds__(kRowKernelWarps * 32)
    row_kernel(int64_t rows, const __grid_constant__ Operation operation) {
  wait_for_previous();
  int64_t row = static_cast<int64_t>(blockIdx.x) * kRowKernelWarps + threadIdx.x / 32;
  if (row < rows) operation(row, static_cast<int>(threadIdx.x) % 32);
}

template <typename Operation>
void launch_rows(int64_t rows, const Operation& operation, cudaStream_t stream) {
  if (rows == 0) return;
  dim3 grid(static_cast<unsigned>(divide_up(rows, kRowKernelWarps)));
  launch_kernel(row_kernel<Operation>, {grid, kRowKernelWarps * 32, 0, 1, /*overlaps=*/true}, stream, rows, operation);
}

// out[c] = value(c) of a row's columns. A store might overwrite what the next column is made of, for all that a
// compiler knows; so a lane first has the values of several columns on their way.
template <typename T, typename Value>
__device__ void store_columns(T* out, int64_t columns, int lane, const Value& value) {
  constexpr int kAtOnce = 8;
  for (int64_t first = lane; first < columns; first += 32 * kAtOnce) {
    T values[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) values[i] = value(min(first + 32 * i, columns - 1));
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (first + 32 * i < columns) out[first + 32 * i] = values[i];
  }
}

// Sum over a warp's rows: `term(column)` of every column of `columns`.
template <typename Term>
__device__ float sum_over_row(int64_t columns, int lane, const Term& term) {
  float sum = 0;
  for (int64_t column = lane; column < columns; column += 32) sum += term(column);
  return sum_over_lanes<32>(sum);
}

}  // namespace thimble
