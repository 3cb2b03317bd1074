// hessian_factor.cu: right-looking blocked factorisation, then inversion block row by block row, batched over matrices
// (blockIdx.z). Off the diagonal tiles everything is products of tiles.
#include "gptq/factor/hessian_factor.cuh"

#include <cfloat>
#include <numeric>

#include "runtime/base/parallel.h"

namespace thimble {
namespace {

// The reversed index: position i of L belongs to position K - 1 - i of U; the padding stays at the end of both.
__device__ int reversed(int i, int columns) { return i < columns ? columns - 1 - i : i; }

// Packs the lower triangle of a Hessian that lies in `stored`, packed or with all rows: factor * H + diag(added), in
// the arithmetic of StoredHessian::load(). `added`: (K), or null for H alone. One thread per element, a row per
// blockIdx.y.
template <typename T>
__global__ void pack_hessian(const T* stored, bool is_square, double factor, const double* added, int columns,
                             double* hessian, int32_t* failed) {
  const int row = blockIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column > row) return;
  const int64_t packed = row * (row + int64_t{1}) / 2 + column;
  double value = stored[is_square ? row * static_cast<int64_t>(columns) + column : packed];
  if (added) {
    value = __dmul_rn(value, factor);
    if (row == column) value = __dadd_rn(value, added[row]);
  }
  if (!isfinite(value)) *failed = kNotFinite;
  hessian[packed] = value;
}

// A (lower triangle and whole diagonal tiles are read later). One thread per element, a row per blockIdx.y.
__global__ void fill_matrix(const DeviceFactor* jobs, int padded) {
  const DeviceFactor job = jobs[blockIdx.z];
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
  if (row == column) job.diagonal[row] = row < job.columns ? job.columns * DBL_EPSILON * value : 0;
  if (row == 0 && column == 0 && *job.failed == kNotPositive) *job.failed = kFactored;
}

// L_kk^-1 of diagonal tile k, into tile (k, k) of `inverse`: one CTA per matrix eliminates column after column from
// A_kk and, at the same time, from the identity. What is left of A's columns and what is there of the inverse's shares
// one tile in registers: thread (row, group) holds columns group, group + 4, ... of its row.
__global__ void __launch_bounds__(kTileThreads) invert_diagonal_tile(const DeviceFactor* jobs, int64_t padded, int k) {
  constexpr int kGroups = kTileThreads / kTile, kOwn = kTile / kGroups;
  // Column j as it stands below the diagonal, and row j of the inverse left of it; two, to need one barrier per column.
  __shared__ double lines[2][kTile];
  const DeviceFactor job = jobs[blockIdx.z];
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
    if (threadIdx.x == 0 && !(pivot > job.diagonal[k + j]) && *job.failed == kFactored) *job.failed = kNotPositive;
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
__global__ void __launch_bounds__(kTileThreads, 2) solve_panel(const DeviceFactor* jobs, int64_t padded, int k) {
  extern __shared__ double shared[];
  const DeviceFactor job = jobs[blockIdx.z];
  double* tile = job.upper + (k + (blockIdx.x + 1) * static_cast<int64_t>(kTile)) * padded + k;
  load_tile(shared, tile, padded);
  load_tile(shared + kTileElements, job.inverse + k * (padded + 1), padded);
  __syncthreads();
  TileAccumulator product;
  product.add_product<true>(shared, shared + kTileElements);
  product.store(tile, padded);
}

// A_ij -= L_ik L_jk^T for the lower triangle of tiles right of and below tile k, one CTA each.
__global__ void __launch_bounds__(kTileThreads, 2) update_trailing(const DeviceFactor* jobs, int64_t padded, int k) {
  extern __shared__ double shared[];
  const DeviceFactor job = jobs[blockIdx.z];
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
__global__ void __launch_bounds__(kTileThreads, 2) invert_block_row(const DeviceFactor* jobs, int64_t padded, int row) {
  extern __shared__ double shared[];
  const DeviceFactor job = jobs[blockIdx.z];
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
__global__ void reverse_inverse(const DeviceFactor* jobs, int padded) {
  const DeviceFactor job = jobs[blockIdx.z];
  int row = blockIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= padded) return;
  double value = row == column;
  if (row <= column && column < job.columns)
    value = job.inverse[static_cast<int64_t>(reversed(row, job.columns)) * padded + reversed(column, job.columns)];
  job.upper[static_cast<int64_t>(row) * padded + column] = value;
  if (row == column) job.diagonal[row] = value;
}

// Enqueues A = H + added * I in the given order, and its U with A^-1 = U^T U. `jobs` lies in device memory.
void inverse_upper_cholesky(const DeviceFactor* jobs, size_t count, int64_t padded_columns, cudaStream_t stream) {
  auto batch = static_cast<unsigned>(count);
  auto padded = static_cast<int>(padded_columns);
  auto launch_tiles = [&](auto kernel, int tiles, int at) {
    const LaunchShape shape{dim3(tiles, 1, batch), kTileThreads, static_cast<int>(kTileSharedBytes)};
    launch_kernel(kernel, shape, stream, jobs, padded_columns, at);
  };
  const LaunchShape elements{dim3(divide_up(padded, kTileThreads), padded, batch), kTileThreads};
  launch_kernel(fill_matrix, elements, stream, jobs, padded);
  for (int k = 0; k < padded; k += kTile) {
    launch_kernel(invert_diagonal_tile, {dim3(1, 1, batch), kTileThreads}, stream, jobs, padded_columns, k);
    int below = padded / kTile - k / kTile - 1;
    if (below == 0) break;
    launch_tiles(solve_panel, below, k);
    launch_tiles(update_trailing, below * (below + 1) / 2, k);
  }
  for (int row = kTile; row < padded; row += kTile) launch_tiles(invert_block_row, row / kTile, row);
  launch_kernel(reverse_inverse, elements, stream, jobs, padded);
}

}  // namespace

void upload_hessian(const StoredHessian& hessian, double* staging, double* added, double* packed, int32_t* failed,
                    cudaStream_t stream) {
  const StoredHessian::Values values = hessian.values();
  const auto columns = static_cast<int>(hessian.size());
  // From the host's memory or a device's, this one's or another's.
  check_cuda(cudaMemcpyAsync(staging, values.bytes.data(), values.bytes.size(), cudaMemcpyDefault, stream));
  if (!values.added.empty()) upload(added, values.added, stream);
  const auto pack = [&]<typename T>(const T* stored) {
    const dim3 rows(static_cast<unsigned>(divide_up(columns, kTileThreads)), static_cast<unsigned>(columns));
    launch_kernel(pack_hessian<T>, {rows, kTileThreads}, stream, stored,
                  values.layout == StoredHessian::Layout::kSquare, values.factor,
                  values.added.empty() ? nullptr : added, columns, packed, failed);
  };
  if (values.is_float32)
    pack(reinterpret_cast<const float*>(staging));
  else
    pack(static_cast<const double*>(staging));
}

std::vector<FactorItem> factor_items(std::span<const FactorJob> jobs) {
  std::vector<FactorItem> items(jobs.size());
  parallel_for(std::ssize(jobs), [&](int64_t index) {
    const auto j = static_cast<size_t>(index);
    const FactorJob& job = jobs[j];
    items[j] = {&job, unfactored_hessian(job.hessian->diagonal(), job.damping, job.name, job.order)};
  });
  return items;
}

FactorBatch::FactorBatch(std::vector<const FactorItem*> items, int64_t padded_columns, Arena& arena)
    : items_(std::move(items)), padded_columns_(padded_columns) {
  const auto count = static_cast<int64_t>(items_.size());
  pending_ = arena.take<DeviceFactor>(count);
  device_diagonals_ = arena.take<double>(count * padded_columns);
  failed_ = arena.take<int32_t>(count);
  for (size_t i = 0; i < items_.size(); ++i) {
    const HessianFactor& factor = items_[i]->unfactored;
    const auto columns = static_cast<int64_t>(factor.order.size());
    dampings_.push_back(factor.damping);
    factors_.push_back(
        {arena.take<double>(columns * (columns + 1) / 2), arena.take<int32_t>(columns), static_cast<int32_t>(columns),
         static_cast<int32_t>(factor.order.size() - factor.dead_columns.size()), 0,
         arena.take<double>(padded_columns * padded_columns), arena.take<double>(padded_columns * padded_columns),
         device_diagonals_ ? device_diagonals_ + static_cast<int64_t>(i) * padded_columns : nullptr,
         failed_ ? failed_ + i : nullptr});
  }
}

void FactorBatch::factor(cudaStream_t stream, const std::function<void()>& meanwhile) {
  // Everything that these uploads read lives until the end of this function, which waits for the stream.
  std::vector<std::vector<int32_t>> orders;
  check_cuda(cudaMemsetAsync(failed_, 0, items_.size() * sizeof(int32_t), stream));
  for (size_t i = 0; i < items_.size(); ++i) {
    const std::vector<int64_t>& order = items_[i]->unfactored.order;
    orders.emplace_back(order.begin(), order.end());
    upload(factors_[i].order, std::span<const int32_t>(orders.back()), stream);
    const DeviceFactor& factor = factors_[i];
    upload_hessian(*items_[i]->job->hessian, factor.upper, factor.diagonal, factor.hessian, factor.failed, stream);
  }
  std::vector<size_t> pending(items_.size());
  std::iota(pending.begin(), pending.end(), size_t{0});
  for (int attempt = 1; !pending.empty(); ++attempt) {
    std::vector<DeviceFactor> batch;
    for (size_t i : pending) {
      factors_[i].added = dampings_[i] * items_[i]->job->hessian->mean_diagonal();
      batch.push_back(factors_[i]);
    }
    upload(pending_, std::span<const DeviceFactor>(batch), stream);
    inverse_upper_cholesky(pending_, batch.size(), padded_columns_, stream);
    if (attempt == 1) meanwhile();
    std::vector<int32_t> failed(items_.size());
    download(std::span(failed), failed_, stream);
    check_cuda(cudaStreamSynchronize(stream));
    std::erase_if(pending, [&](size_t i) { return failed[i] == kFactored; });
    for (size_t i : pending) {
      const FactorJob& job = *items_[i]->job;
      if (failed[i] == kNotFinite) require_finite_hessian(*job.hessian->load(), job.name);  // which throws
      dampings_[i] = raised_damping(dampings_[i], attempt, job.name);
    }
  }
  diagonals_.resize(items_.size() * static_cast<size_t>(padded_columns_));
  download(std::span(diagonals_), static_cast<const double*>(device_diagonals_), stream);
  check_cuda(cudaStreamSynchronize(stream));
}

HessianFactor FactorBatch::on_host(size_t i) const {
  HessianFactor factor = items_[i]->unfactored;
  factor.damping = dampings_[i];
  return factor;
}

std::vector<double> FactorBatch::upper_diagonal(size_t i) const {
  const auto first = diagonals_.begin() + static_cast<ptrdiff_t>(i) * padded_columns_;
  return items_[i]->unfactored.by_column(std::vector(first, first + factors_[i].columns));
}

}  // namespace thimble
