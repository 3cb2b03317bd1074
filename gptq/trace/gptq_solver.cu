// gptq_solver.cu: algorithm 1 of gptq_solver.cpp with 64 rows per CTA, in blocks of 64 columns. The lazy batch update
// (eq. 4) is done when a block's turn comes instead of when its predecessors are done (left-looking), so that errors
// are written once and weights never: a block's weights are W less the errors of all earlier columns times U.
#include <cuda_fp16.h>

#include <algorithm>

#include "gptq/factor/f64_tile.cuh"
#include "gptq/trace/gptq_solver.cuh"
#include "gptq/trace/nvfp4_grid.h"
#include "runtime/cuda/kernels/cuda_context.cuh"
#include "runtime/cuda/kernels/cuda_numeric.cuh"

namespace thimble {
namespace {

constexpr int kPanel = 16;     // columns that one thread solves alone; their codes are one 16-byte store
constexpr int kThreads = 256;  // of kernels with a thread per code or byte

// What a row has summed up so far; sums in the order of columns and without fused additions, as the CPU does them.
struct RowErrors {
  double squared = 0;
  double weighted = 0;

  __device__ void add(double difference, double error) {
    squared = add_square(squared, difference);
    weighted = add_square(weighted, error);
  }
};

// A weight rounded to a grid.
struct Rounded {
  int8_t code;
  double value;
};

// Rows of a candidate's grid, as those of gptq_solver.cpp. The scale of a column (in the original order) is fetched
// ahead: rounding is one long chain of dependent operations, which no load should lengthen.
template <typename Grid>
struct GridRow;

template <>
struct GridRow<RowScaledGrid> {
  double row_scale, limit;

  __device__ GridRow(const SolverJob<RowScaledGrid>& job, int candidate, int row)
      : row_scale(__half2float(__ushort_as_half(job.scales[static_cast<int64_t>(candidate) * job.rows + row]))),
        limit(job.grid.max_code) {}
  __device__ double scale(int) const { return row_scale; }
  // nearest_code() of grid.h.
  __device__ Rounded round(double scale, double weight) const {
    double code = rint(fmin(fmax(weight / scale, -limit), limit));
    return {static_cast<int8_t>(code), code * scale};  // the product is exact: 8 bits by 11
  }
};

template <>
struct GridRow<Nvfp4Grid> {
  const uint8_t* scales;
  float tensor_scale;

  __device__ GridRow(const SolverJob<Nvfp4Grid>& job, int, int row)
      : scales(job.scales + static_cast<int64_t>(row) * divide_up(job.columns, kNvfp4Block)),
        tensor_scale(job.grid.tensor_scale) {}
  __device__ float scale(int column) const { return float_from_ue4m3(scales[column / kNvfp4Block]); }
  __device__ Rounded round(float scale, double weight) const {
    const Nvfp4BlockGrid grid{scale, tensor_scale};
    uint8_t code = grid.nearest(weight);
    return {static_cast<int8_t>(code), grid.value(code)};
  }
};

// Block [start, start + kTile) of the weights less what earlier columns' errors demand: `w` and `u` are the tiles of
// shared memory, `errors` (kTile, P) those of the item's rows.
template <typename Grid>
__device__ void load_corrected_weights(const SolverJob<Grid>& job, int first_row, int64_t padded, int start,
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
template <typename Grid>
__device__ void solve_panel_of_row(const SolverJob<Grid>& job, const GridRow<Grid>& grid, int row, int start,
                                   const double* u, double* w, int8_t* codes, RowErrors& sums) {
  double panel[kPanel];
  float original[kPanel];
  decltype(grid.scale(0)) scales[kPanel];
#pragma unroll
  for (int i = 0; i < kPanel; ++i) {
    bool exists = start + i < job.columns;
    int column = exists ? job.order[start + i] : 0;  // padding is 0, which any scale rounds to 0
    panel[i] = w[i];
    original[i] = exists ? job.weights[static_cast<int64_t>(row) * job.columns + column] : 0.0F;
    scales[i] = grid.scale(column);
  }
  alignas(16) int8_t panel_codes[kPanel];
#pragma unroll
  for (int i = 0; i < kPanel; ++i) {
    Rounded rounded = grid.round(scales[i], panel[i]);
    double error = (panel[i] - rounded.value) / u[i * kTileStride + i];
#pragma unroll
    for (int j = i + 1; j < kPanel; ++j) panel[j] -= error * u[i * kTileStride + j];
    panel_codes[i] = rounded.code;
    w[i] = error;
    sums.add(original[i] - rounded.value, error);
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
template <typename Grid>
__global__ void __launch_bounds__(kTileThreads, 2)
    solve_items_kernel(const SolverJob<Grid>* jobs, const SolverItem* items, int64_t item_count, int64_t padded,
                       double* slots) {
  extern __shared__ double shared[];
  double* w = shared;
  double* u = shared + kTileElements;
  double* errors = slots + blockIdx.x * kTile * padded;
  for (int64_t index = blockIdx.x; index < item_count; index += gridDim.x) {
    const SolverItem item = items[index];
    const SolverJob<Grid>& job = jobs[item.job];
    int row = item.first_row + threadIdx.x;
    bool solves = threadIdx.x < kTile && row < job.rows;
    int64_t result = static_cast<int64_t>(item.candidate) * job.rows + row;
    const GridRow<Grid> grid(job, item.candidate, solves ? row : item.first_row);
    RowErrors sums;
    for (int start = 0; start < padded; start += kTile) {
      load_corrected_weights(job, item.first_row, padded, start, errors, w, u);
      for (int panel = 0; panel < kTile; panel += kPanel) {
        if (solves)
          solve_panel_of_row(job, grid, row, start + panel, u + panel * (kTileStride + 1),
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

// (R, K) codes of 4 bits to two in a byte, as Nvfp4Codes. One thread per byte, a row per blockIdx.x.
__global__ void pack_nvfp4_codes_kernel(const int8_t* codes, int columns, int row_bytes, uint8_t* packed) {
  int byte = blockIdx.y * blockDim.x + threadIdx.x;
  int64_t row = blockIdx.x;
  if (byte >= row_bytes) return;
  const int8_t* pair = codes + row * columns + 2 * byte;
  int high = 2 * byte + 1 < columns ? pair[1] : 0;
  packed[row * row_bytes + byte] = static_cast<uint8_t>(pair[0] | high << 4);
}

// Codes (R, K) of one candidate, columns in their original order, over the weights.
template <typename Grid>
int8_t* restore_column_order(const SolverJob<Grid>& job, int candidate, int64_t padded_columns, cudaStream_t stream) {
  auto* codes = reinterpret_cast<int8_t*>(job.weights);
  const int8_t* solved = job.codes + static_cast<int64_t>(candidate) * job.rows * padded_columns;
  dim3 grid(job.rows, divide_up(job.columns, kThreads));
  launch_kernel(restore_column_order_kernel, {grid, kThreads}, stream, solved, job.order, job.columns, padded_columns,
                codes);
  return codes;
}

}  // namespace

int64_t solver_slot_elements(int64_t padded_columns) { return kTile * padded_columns; }

template <typename Grid>
int64_t solver_slots() {
  int per_processor = 0;
  check_cuda(
      cudaFuncSetAttribute(solve_items_kernel<Grid>, cudaFuncAttributeMaxDynamicSharedMemorySize, kTileSharedBytes));
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_processor, solve_items_kernel<Grid>, kTileThreads,
                                                           kTileSharedBytes));
  return static_cast<int64_t>(multiprocessors()) * per_processor;
}

template <typename Grid>
void solve_items(const SolverJob<Grid>* jobs, const SolverItem* items, int64_t item_count, int64_t padded_columns,
                 double* errors, int64_t slots, cudaStream_t stream) {
  auto ctas = static_cast<unsigned>(std::min(item_count, slots));
  launch_kernel(solve_items_kernel<Grid>, {ctas, kTileThreads, kTileSharedBytes}, stream, jobs, items, item_count,
                padded_columns, errors);
}

template int64_t solver_slots<RowScaledGrid>();
template int64_t solver_slots<Nvfp4Grid>();
template void solve_items(const SolverJob<RowScaledGrid>*, const SolverItem*, int64_t, int64_t, double*, int64_t,
                          cudaStream_t);
template void solve_items(const SolverJob<Nvfp4Grid>*, const SolverItem*, int64_t, int64_t, double*, int64_t,
                          cudaStream_t);

const int8_t* finish_codes(const SolverJob<RowScaledGrid>& job, int candidate, int64_t padded_columns,
                           cudaStream_t stream) {
  return restore_column_order(job, candidate, padded_columns, stream);
}

const uint8_t* finish_codes(const SolverJob<Nvfp4Grid>& job, int candidate, int64_t padded_columns,
                            cudaStream_t stream) {
  const int8_t* codes = restore_column_order(job, candidate, padded_columns, stream);
  // Behind the codes: a weight's four bytes hold its code and its half of a packed byte.
  auto* packed = reinterpret_cast<uint8_t*>(job.weights) + static_cast<int64_t>(job.rows) * job.columns;
  int row_bytes = static_cast<int>(nvfp4_row_bytes(job.columns));
  dim3 grid(job.rows, divide_up(row_bytes, kThreads));
  launch_kernel(pack_nvfp4_codes_kernel, {grid, kThreads}, stream, codes, job.columns, row_bytes, packed);
  return packed;
}

}  // namespace thimble
