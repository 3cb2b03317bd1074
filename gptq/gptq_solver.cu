// gptq_solver.cu: algorithm 1 of gptq_solver.cpp with 64 rows per CTA, in blocks of 64 columns. The lazy batch update
// (eq. 4) is done when a block's turn comes instead of when its predecessors are done (left-looking), so that errors
// are written once and weights never: a block's weights are W less the errors of all earlier columns times U.
#include <cuda_fp16.h>

#include <algorithm>

#include "gptq/f64_tile.cuh"
#include "gptq/gptq_solver.cuh"
#include "runtime/cuda_context.cuh"
#include "runtime/cuda_numeric.cuh"

namespace thimble {
namespace {

constexpr int kPanel = 16;  // columns that one thread solves alone; their codes are one 16-byte store
constexpr int kRestoreThreads = 256;

// What a row has summed up so far; sums in the order of columns and without fused additions, as the CPU does them.
struct RowErrors {
  double squared = 0;
  double weighted = 0;

  __device__ void add(double difference, double error) {
    squared = __dadd_rn(squared, __dmul_rn(difference, difference));
    weighted = __dadd_rn(weighted, __dmul_rn(error, error));
  }
};

// nearest_code() of grid.h.
__device__ double nearest(double weight, double scale, double limit) {
  return rint(fmin(fmax(weight / scale, -limit), limit));
}

// Block [start, start + kTile) of the weights less what earlier columns' errors demand: `w` and `u` are the tiles of
// shared memory, `errors` (kTile, P) those of the item's rows.
__device__ void load_corrected_weights(const SolverJob& job, int first_row, int64_t padded, int start,
                                       const double* errors, double* w, double* u) {
  TileAccumulator correction;
  correction.add_long_product(errors, padded, job.upper + start, padded, start, w);
  correction.store(w, kTileStride, -1);
  load_tile(u, job.upper + start * (padded + 1), padded);
  __syncthreads();
  for (int i = threadIdx.x; i < kTile * kTile; i += kTileThreads) {
    int row = i / kTile, column = i % kTile, global_row = first_row + row;
    double* at = w + row * kTileStride + column;
    bool live = global_row < job.rows && start + column < job.live_columns;
    *at = live ? *at + job.weights[static_cast<int64_t>(global_row) * job.columns + job.order[start + column]] : 0.0;
  }
  __syncthreads();
}

// The inner loop of algorithm 1 over one panel of one row: weights in `w` become errors; a thread of its own.
__device__ void solve_panel_of_row(const SolverJob& job, int row, int start, const double* u, double scale, double* w,
                                   int8_t* codes, RowErrors& sums) {
  double panel[kPanel];
  float original[kPanel];
#pragma unroll
  for (int i = 0; i < kPanel; ++i) {
    panel[i] = w[i];
    original[i] =
        start + i < job.columns ? job.weights[static_cast<int64_t>(row) * job.columns + job.order[start + i]] : 0.0F;
  }
  alignas(16) int8_t panel_codes[kPanel];
  double limit = job.max_code;
#pragma unroll
  for (int i = 0; i < kPanel; ++i) {
    double code = nearest(panel[i], scale, limit);
    double error = (panel[i] - code * scale) / u[i * kTileStride + i];
#pragma unroll
    for (int j = i + 1; j < kPanel; ++j) panel[j] -= error * u[i * kTileStride + j];
    panel_codes[i] = static_cast<int8_t>(code);
    w[i] = error;
    sums.add(original[i] - code * scale, error);  // the product is exact: 8 bits by 11
  }
  *reinterpret_cast<int4*>(codes) = *reinterpret_cast<const int4*>(panel_codes);
}

// The panel's errors reach the block's later columns. Four threads per row, each every fourth column.
__device__ void update_block(double* w, const double* u, int panel) {
  int row = threadIdx.x % kTile;
  double errors[kPanel];
#pragma unroll
  for (int i = 0; i < kPanel; ++i) errors[i] = w[row * kTileStride + panel + i];
  for (int j = panel + kPanel + threadIdx.x / kTile; j < kTile; j += kTileThreads / kTile) {
    double weight = w[row * kTileStride + j];
#pragma unroll
    for (int i = 0; i < kPanel; ++i) weight -= errors[i] * u[(panel + i) * kTileStride + j];
    w[row * kTileStride + j] = weight;
  }
}

// Each CTA solves items blockIdx.x, blockIdx.x + gridDim.x, ...; it owns the errors' slot blockIdx.x.
__global__ void __launch_bounds__(kTileThreads, 2)
    solve_items_kernel(const SolverJob* jobs, const SolverItem* items, int64_t item_count, int64_t padded,
                       double* slots) {
  extern __shared__ double shared[];
  double* w = shared;
  double* u = shared + kTileElements;
  double* errors = slots + blockIdx.x * kTile * padded;
  for (int64_t index = blockIdx.x; index < item_count; index += gridDim.x) {
    const SolverItem item = items[index];
    const SolverJob& job = jobs[item.job];
    int row = item.first_row + threadIdx.x;
    bool solves = threadIdx.x < kTile && row < job.rows;
    int64_t result = static_cast<int64_t>(item.clip) * job.rows + row;
    double scale = solves ? __half2float(__ushort_as_half(job.row_scales[result])) : 1;
    RowErrors sums;
    for (int start = 0; start < padded; start += kTile) {
      load_corrected_weights(job, item.first_row, padded, start, errors, w, u);
      for (int panel = 0; panel < kTile; panel += kPanel) {
        if (solves)
          solve_panel_of_row(job, row, start + panel, u + panel * (kTileStride + 1), scale,
                             w + threadIdx.x * kTileStride + panel, job.codes + result * padded + start + panel, sums);
        __syncthreads();
        update_block(w, u, panel);
        __syncthreads();
      }
      store_tile(w, errors + start, padded);
      __syncthreads();
    }
    if (solves) {
      job.squared_errors[result] = sums.squared;
      job.weighted_losses[result] = sums.weighted;
    }
  }
}

// One thread per code, a row per blockIdx.x.
__global__ void restore_column_order_kernel(const int8_t* solved, const int32_t* order, int columns, int64_t padded,
                                            int8_t* codes) {
  int i = blockIdx.y * blockDim.x + threadIdx.x;
  int64_t row = blockIdx.x;
  if (i < columns) codes[row * columns + order[i]] = solved[row * padded + i];
}

}  // namespace

int64_t solver_slot_elements(int64_t padded_columns) { return kTile * padded_columns; }

int64_t solver_slots() {
  int per_processor = 0;
  check_cuda(cudaFuncSetAttribute(solve_items_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kTileSharedBytes));
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_processor, solve_items_kernel, kTileThreads,
                                                           kTileSharedBytes));
  return static_cast<int64_t>(multiprocessors()) * per_processor;
}

void solve_items(const SolverJob* jobs, const SolverItem* items, int64_t item_count, int64_t padded_columns,
                 double* errors, int64_t slots, cudaStream_t stream) {
  check_cuda(cudaFuncSetAttribute(solve_items_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kTileSharedBytes));
  auto ctas = static_cast<unsigned>(std::min(item_count, slots));
  solve_items_kernel<<<ctas, kTileThreads, kTileSharedBytes, stream>>>(jobs, items, item_count, padded_columns, errors);
  check_cuda(cudaGetLastError());
}

void restore_column_order(const SolverJob& job, int clip, int64_t padded_columns, int8_t* codes, cudaStream_t stream) {
  dim3 grid(job.rows, divide_up(job.columns, kRestoreThreads));
  const int8_t* solved = job.codes + static_cast<int64_t>(clip) * job.rows * padded_columns;
  restore_column_order_kernel<<<grid, kRestoreThreads, 0, stream>>>(solved, job.order, job.columns, padded_columns,
                                                                    codes);
  check_cuda(cudaGetLastError());
}

}  // namespace thimble
