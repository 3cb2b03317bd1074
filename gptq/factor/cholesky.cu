// cholesky.cu: right-looking blocked factorisation, then inversion block row by block row, batched over matrices
// (blockIdx.z). Off the diagonal tiles everything is products of tiles.
#include <cfloat>

#include "gptq/factor/cholesky.cuh"
#include "gptq/factor/f64_tile.cuh"
#include "runtime/cuda/kernels/cuda_context.cuh"
#include "runtime/cuda/kernels/cuda_numeric.cuh"

namespace thimble {
namespace {

// The reversed index: position i of L belongs to position K - 1 - i of U; the padding stays at the end of both.
__device__ int reversed(int i, int columns) { return i < columns ? columns - 1 - i : i; }

// A (lower triangle and whole diagonal tiles are read later). One thread per element, a row per blockIdx.y.
__global__ void fill_matrix(const CholeskyJob* jobs, int padded) {
  const CholeskyJob job = jobs[blockIdx.z];
  int row = blockIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= padded) return;
  double value = row == column;
  if (row < job.columns && column < job.columns) {
    int i = reversed(row, job.columns), j = reversed(column, job.columns);
    bool dead = i >= job.live_columns || j >= job.live_columns;
    int64_t a = job.order[i], b = job.order[j];
    int64_t high = max(a, b), low = min(a, b);
    if (!dead) value = job.hessian[high * (high + 1) / 2 + low];
    if (row == column) value += job.added;
  }
  job.upper[static_cast<int64_t>(row) * padded + column] = value;
  // Rounding in row i amounts to about K * epsilon * A_ii (Cauchy-Schwarz); a smaller pivot is noise.
  if (row == column) job.pivot_floors[row] = row < job.columns ? job.columns * DBL_EPSILON * value : 0;
  if (row == 0 && column == 0) *job.failed = 0;
}

// L_kk^-1 of diagonal tile k, into tile (k, k) of `inverse`: one CTA per matrix eliminates column after column from
// A_kk and, at the same time, from the identity. What is left of A's columns and what is there of the inverse's shares
// one tile in registers: thread (row, group) holds columns group, group + 4, ... of its row.
__global__ void __launch_bounds__(kTileThreads) invert_diagonal_tile(const CholeskyJob* jobs, int64_t padded, int k) {
  constexpr int kGroups = kTileThreads / kTile, kOwn = kTile / kGroups;
  // Column j as it stands below the diagonal, and row j of the inverse left of it; two, to need one barrier per column.
  __shared__ double lines[2][kTile];
  const CholeskyJob job = jobs[blockIdx.z];
  int row = threadIdx.x % kTile, group = threadIdx.x / kTile;
  const double* from = job.upper + k * (padded + 1) + row * padded;
  double own[kOwn];
#pragma unroll
  for (int q = 0; q < kOwn; ++q) own[q] = from[q * kGroups + group];

  for (int j = 0; j < kTile; ++j) {
    double* line = lines[j % 2];
#pragma unroll
    for (int q = 0; q < kOwn; ++q) {
      int column = q * kGroups + group;
      if (column == j && row >= j) line[row] = own[q];
      if (row == j && column < j) line[column] = own[q];
    }
    __syncthreads();
    double pivot = line[j];
    if (threadIdx.x == 0 && !(pivot > job.pivot_floors[k + j])) *job.failed = 1;
    double scale = 1 / sqrt(pivot), factor = line[row] * scale;
#pragma unroll
    for (int q = 0; q < kOwn; ++q) {
      int column = q * kGroups + group;
      double above = column == j ? scale : line[column] * scale;  // L_cj right of j, row j of the inverse up to it
      if (row > j) own[q] = (column == j ? 0 : own[q]) - factor * above;
      if (row == j) own[q] = above;
    }
  }
  double* to = job.inverse + k * (padded + 1) + row * padded;
#pragma unroll
  for (int q = 0; q < kOwn; ++q) to[q * kGroups + group] = q * kGroups + group <= row ? own[q] : 0;
}

// L_ik = A_ik L_kk^-T for the tiles below tile k of the diagonal, one CTA each.
__global__ void __launch_bounds__(kTileThreads, 2) solve_panel(const CholeskyJob* jobs, int64_t padded, int k) {
  extern __shared__ double shared[];
  const CholeskyJob job = jobs[blockIdx.z];
  double* tile = job.upper + (k + (blockIdx.x + 1) * static_cast<int64_t>(kTile)) * padded + k;
  load_tile(shared, tile, padded);
  load_tile(shared + kTileElements, job.inverse + k * (padded + 1), padded);
  __syncthreads();
  TileAccumulator product;
  product.add_product<true>(shared, shared + kTileElements);
  product.store(tile, padded);
}

// A_ij -= L_ik L_jk^T for the lower triangle of tiles right of and below tile k, one CTA each.
__global__ void __launch_bounds__(kTileThreads, 2) update_trailing(const CholeskyJob* jobs, int64_t padded, int k) {
  extern __shared__ double shared[];
  const CholeskyJob job = jobs[blockIdx.z];
  int index = blockIdx.x, i = 0;
  while (index > i) index -= ++i;  // tile (i, index) of the triangle
  int64_t row = k + (i + 1) * static_cast<int64_t>(kTile), column = k + (index + 1) * static_cast<int64_t>(kTile);
  load_tile(shared, job.upper + row * padded + k, padded);
  load_tile(shared + kTileElements, job.upper + column * padded + k, padded);
  __syncthreads();
  TileAccumulator product;
  product.add_product<true>(shared, shared + kTileElements);
  product.subtract_from(job.upper + row * padded + column, padded);
}

// X_ij = -L_ii^-1 * sum over j <= m < i of L_im X_mj for the tiles left of tile `row` of the diagonal, one CTA each.
__global__ void __launch_bounds__(kTileThreads, 2) invert_block_row(const CholeskyJob* jobs, int64_t padded, int row) {
  extern __shared__ double shared[];
  const CholeskyJob job = jobs[blockIdx.z];
  int column = blockIdx.x * kTile;
  double* left = shared;
  double* right = shared + kTileElements;
  TileAccumulator sum;
  sum.add_long_product(job.upper + row * padded + column, padded, job.inverse + column * (padded + 1), padded,
                       row - column, shared);
  load_tile(left, job.inverse + row * (padded + 1), padded);
  sum.store(right, kTileStride);
  __syncthreads();
  TileAccumulator product;
  product.add_product<false>(left, right);
  product.store(job.inverse + row * padded + column, padded, -1);
}

// U = J X J over A, with zeros below the diagonal. One thread per element, a row per blockIdx.y.
__global__ void reverse_inverse(const CholeskyJob* jobs, int padded) {
  const CholeskyJob job = jobs[blockIdx.z];
  int row = blockIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= padded) return;
  double value = row == column;
  if (row <= column && column < job.columns)
    value = job.inverse[static_cast<int64_t>(reversed(row, job.columns)) * padded + reversed(column, job.columns)];
  job.upper[static_cast<int64_t>(row) * padded + column] = value;
}

}  // namespace

void inverse_upper_cholesky(const CholeskyJob* jobs, int64_t count, int64_t padded_columns, cudaStream_t stream) {
  for (auto kernel : {solve_panel, update_trailing, invert_block_row})
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kTileSharedBytes));
  auto batch = static_cast<unsigned>(count);
  auto padded = static_cast<int>(padded_columns);
  dim3 elements(divide_up(padded, kTileThreads), padded, batch);
  fill_matrix<<<elements, kTileThreads, 0, stream>>>(jobs, padded);
  for (int k = 0; k < padded; k += kTile) {
    invert_diagonal_tile<<<dim3(1, 1, batch), kTileThreads, 0, stream>>>(jobs, padded, k);
    int below = padded / kTile - k / kTile - 1;
    if (below == 0) break;
    solve_panel<<<dim3(below, 1, batch), kTileThreads, kTileSharedBytes, stream>>>(jobs, padded, k);
    update_trailing<<<dim3(below * (below + 1) / 2, 1, batch), kTileThreads, kTileSharedBytes, stream>>>(jobs, padded,
                                                                                                         k);
  }
  for (int row = kTile; row < padded; row += kTile)
    invert_block_row<<<dim3(row / kTile, 1, batch), kTileThreads, kTileSharedBytes, stream>>>(jobs, padded, row);
  reverse_inverse<<<elements, kTileThreads, 0, stream>>>(jobs, padded);
  check_cuda(cudaGetLastError());
}

}  // namespace thimble
