// gptq_solver.cu: algorithm 1 of gptq_solver.cpp for waves of Hessians with their layers (device_waves.cuh), with 64
// rows per CTA, in blocks of 64 columns. The lazy batch update (eq. 4) is done when a block's turn comes instead of
// when its predecessors are done (left-looking), so that errors are written once and weights never: a block's weights
// are W less the errors of all earlier columns times U. R = output rows, K = input columns, B = ceil(K / 16) blocks of
// a row, P = K rounded up to a multiple of kTile (f64_tile.cuh), C = candidates: solutions of a matrix, of which one is
// kept.
#include "gptq/trace/gptq_solver.h"

#include <cuda_fp16.h>

#include <algorithm>
#include <map>

#include "gptq/factor/device_waves.cuh"

namespace thimble {
namespace {

constexpr int kPanel = 16;  // columns that one thread solves alone
constexpr int kRowsPerCta = 8;
constexpr int64_t kRowsPerTask = 64;  // of the host
constexpr size_t kWaveBytes = size_t{256} << 20;

// One matrix; pointers to device memory.
template <typename Grid>
struct DeviceLayer {
  DeviceFactor factor;
  float* weights;  // (R, K)
  int32_t rows;    // R
  Grid grid;
  typename Grid::Scale* scales;
  int8_t* codes;      // (C, R, K) of the columns in their original order
  RowErrors* errors;  // (C, R)
};

// The grids: what a matrix has of each besides its weights. The scales are chosen before any column is solved.
struct RowScaledGrid {
  using Codes = RowScaledCodes;
  using Scale = uint16_t;  // fp16 bits, (C, R)
  using Row = RowScaledRow;
  static constexpr std::array kClips = kClipFractions;
  static int64_t scales(int64_t rows, int64_t) { return rows; }  // of one candidate

  int32_t max_code;

  __device__ Row row(const DeviceLayer<RowScaledGrid>& layer, int candidate, int r) const {
    return {__half2float(__ushort_as_half(layer.scales[static_cast<int64_t>(candidate) * layer.rows + r])), max_code};
  }
  // codes: (R, K) of the candidate with these scales.
  Codes result(ConstMatrixView, std::span<const Scale> scales, std::vector<int8_t> codes) const {
    return {max_code, std::move(codes), {scales.begin(), scales.end()}};
  }
};
struct Nvfp4Grid {
  using Codes = Nvfp4Codes;
  using Scale = uint8_t;  // UE4M3, (R, B)
  using Row = Nvfp4Row;
  static constexpr std::array kClips = {1.0};
  static int64_t scales(int64_t rows, int64_t columns) { return rows * nvfp4_blocks(columns); }

  float tensor_scale;

  __device__ Row row(const DeviceLayer<Nvfp4Grid>& layer, int, int r) const {
    return {layer.scales + r * nvfp4_blocks(layer.factor.columns), tensor_scale};
  }
  Codes result(ConstMatrixView weights, std::span<const Scale> scales, std::vector<int8_t> codes) const {
    Codes packed = nvfp4_zeros(weights.rows, weights.cols);
    packed.block_scales.assign(scales.begin(), scales.end());
    packed.tensor_scale = tensor_scale;
    parallel_chunks(weights.rows, kRowsPerTask, [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r)
        for (int64_t k = 0; k < weights.cols; ++k)
          set_code(packed, weights.cols, r, k, codes[static_cast<size_t>(r * weights.cols + k)]);
    });
    return packed;
  }
};

// A tile of rows of one candidate: what one CTA solves at a time.
struct SolverItem {
  int32_t layer;
  int32_t candidate;
  int32_t first_row;
};

// The scales of choose_nvfp4_scales(). One warp per row, a lane per block: a lane reads 64 neighbouring bytes, 13
// times, from its cache.
__global__ void block_scales_kernel(const DeviceLayer<Nvfp4Grid>* layers) {
  const DeviceLayer<Nvfp4Grid>& layer = layers[blockIdx.y];
  int row = blockIdx.x * kRowsPerCta + threadIdx.x / 32, columns = layer.factor.columns;
  if (row >= layer.rows) return;
  const float* weights = layer.weights + static_cast<int64_t>(row) * columns;
  int blocks = divide_up(columns, kNvfp4Block);
  for (int block = threadIdx.x % 32; block < blocks; block += 32) {
    int begin = block * kNvfp4Block, count = min(kNvfp4Block, columns - begin);
    layer.scales[static_cast<int64_t>(row) * blocks + block] =
        best_nvfp4_block_scale(weights + begin, count, layer.grid.tensor_scale);
  }
}

// Block [start, start + kTile) of the weights less what earlier columns' errors demand: `w` and `u` are the tiles of
// shared memory, `errors` (kTile, P) those of the item's rows.
template <typename Grid>
__device__ void load_corrected_weights(const DeviceLayer<Grid>& layer, int first_row, int64_t padded, int start,
                                       const double* errors, double* w, double* u) {
  TileAccumulator correction;
  correction.add_long_product(errors, padded, layer.factor.upper + start, padded, start, w);
  correction.store(w, kTileStride, -1);
  load_tile(u, layer.factor.upper + start * (padded + 1), padded);
  __syncthreads();
  for (int i = threadIdx.x; i < kTile * kTile; i += kTileThreads) {
    int row = i / kTile, column = i % kTile, global_row = first_row + row;
    double* at = w + row * kTileStride + column;
    bool live = global_row < layer.rows && start + column < layer.factor.live_columns;
    *at = live ? *at + layer.weights[static_cast<int64_t>(global_row) * layer.factor.columns +
                                     layer.factor.order[start + column]]
               : 0.0;
  }
  __syncthreads();
}

// The inner loop of algorithm 1 over one panel of one row: weights in `w` become errors; a thread of its own.
template <typename Grid>
__device__ void solve_panel_of_row(const DeviceLayer<Grid>& layer, const typename Grid::Row& grid, int row, int start,
                                   const double* u, double* w, int8_t* codes, RowErrors& sums) {
  const int32_t* order = layer.factor.order + start;
  const int columns = layer.factor.columns;
  double panel[kPanel];
  float original[kPanel];
  decltype(grid.scale(0)) scales[kPanel];
#pragma unroll
  for (int i = 0; i < kPanel; ++i) {
    bool exists = start + i < columns;
    int column = exists ? order[i] : 0;  // padding is 0, which any scale rounds to 0
    panel[i] = w[i];
    original[i] = exists ? layer.weights[static_cast<int64_t>(row) * columns + column] : 0.0F;
    scales[i] = grid.scale(column);
  }
  int8_t panel_codes[kPanel];
#pragma unroll
  for (int i = 0; i < kPanel; ++i) {
    RoundedWeight rounded = grid.round(scales[i], panel[i]);
    double error = (panel[i] - rounded.value) / u[i * kTileStride + i];
#pragma unroll
    for (int j = i + 1; j < kPanel; ++j) panel[j] -= error * u[i * kTileStride + j];
    panel_codes[i] = rounded.code;
    w[i] = error;
    sums.add(original[i] - rounded.value, error);
  }
#pragma unroll
  for (int i = 0; i < kPanel; ++i)
    if (start + i < columns) codes[order[i]] = panel_codes[i];
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
    solve_items_kernel(const DeviceLayer<Grid>* layers, const SolverItem* items, int64_t item_count, int64_t padded,
                       double* slots) {
  extern __shared__ double shared[];
  double* w = shared;
  double* u = shared + kTileElements;
  double* errors = slots + blockIdx.x * kTile * padded;
  for (int64_t index = blockIdx.x; index < item_count; index += gridDim.x) {
    const SolverItem item = items[index];
    const DeviceLayer<Grid>& layer = layers[item.layer];
    int row = item.first_row + threadIdx.x;
    bool solves = threadIdx.x < kTile && row < layer.rows;
    int64_t result = static_cast<int64_t>(item.candidate) * layer.rows + row;
    const typename Grid::Row grid = layer.grid.row(layer, item.candidate, solves ? row : item.first_row);
    RowErrors sums;
    for (int start = 0; start < padded; start += kTile) {
      load_corrected_weights(layer, item.first_row, padded, start, errors, w, u);
      for (int panel = 0; panel < kTile; panel += kPanel) {
        if (solves)
          solve_panel_of_row(layer, grid, row, start + panel, u + panel * (kTileStride + 1),
                             w + threadIdx.x * kTileStride + panel, layer.codes + result * layer.factor.columns, sums);
        __syncthreads();
        update_block(w, u, panel);
        __syncthreads();
      }
      copy_tile(errors + start, padded, w, kTileStride);
      __syncthreads();
    }
    if (solves) layer.errors[result] = sums;
  }
}

// What all lanes read.
template <typename Grid>
struct Work {
  std::span<const GptqJob> jobs;
  const OnGptqSolved<typename Grid::Codes>& on_solved;
  std::vector<Grid> grids;                                // by job
  std::vector<std::vector<typename Grid::Scale>> scales;  // by job, of all candidates; none where the device finds them
  std::vector<std::vector<size_t>> jobs_of;               // by Hessian
};

// By grid, what the host finds out about a job beforehand.
void prepare(Work<RowScaledGrid>& work, size_t j) {
  const GptqJob& job = work.jobs[j];
  work.grids[j] = {job.max_code};
  work.scales[j] = row_scales(job.weights, kClipFractions, job.max_code, job.name);
}
void prepare(Work<Nvfp4Grid>& work, size_t j) { work.grids[j] = {nvfp4_tensor_scale(work.jobs[j].weights)}; }

// A wave's layers; see solve_in_waves().
template <typename Grid>
class WaveLayers {
 public:
  WaveLayers(const Work<Grid>& work, const Wave& wave, const FactorBatch& factors, int64_t most_slots, Arena& arena)
      : work_(work), factors_(factors) {
    for (size_t h = 0; h < wave.hessians.size(); ++h)
      for (size_t job : work.jobs_of[wave.hessians[h]]) add_layer(job, h, arena);
    device_layers_ = arena.take<DeviceLayer<Grid>>(static_cast<int64_t>(layers_.size()));
    device_items_ = arena.take<SolverItem>(static_cast<int64_t>(items_.size()));
    slots_ = std::min(static_cast<int64_t>(items_.size()), most_slots);
    errors_ = arena.take<double>(slots_ * kTile * factors.padded_columns());
  }

  static int64_t most_slots() { return resident_ctas(solve_items_kernel<Grid>, kTileThreads, kTileSharedBytes); }

  void upload(cudaStream_t stream) const {
    thimble::upload(device_layers_, std::span<const DeviceLayer<Grid>>(layers_), stream);
    thimble::upload(device_items_, std::span<const SolverItem>(items_), stream);
    for (size_t i = 0; i < layers_.size(); ++i) {
      upload_rows(layers_[i].weights, job(i).weights, /*staging=*/nullptr, stream);
      thimble::upload(layers_[i].scales, std::span(work_.scales[places_[i].job]), stream);
    }
  }

  void solve(cudaStream_t stream) const {
    if (!items_.empty()) solve_items(stream);
    std::vector<std::vector<RowErrors>> errors;
    for (const DeviceLayer<Grid>& layer : layers_) {
      errors.emplace_back(kCandidates * static_cast<size_t>(layer.rows));
      download(std::span(errors.back()), static_cast<const RowErrors*>(layer.errors), stream);
    }
    check_cuda(cudaStreamSynchronize(stream));
    for (size_t i = 0; i < layers_.size(); ++i) finish(i, errors[i], stream);
  }

 private:
  static constexpr size_t kCandidates = Grid::kClips.size();
  struct Place {
    size_t job, hessian;  // the latter's number in the wave
  };

  void add_layer(size_t job, size_t hessian, Arena& arena) {
    const ConstMatrixView& weights = work_.jobs[job].weights;
    const auto candidates = static_cast<int32_t>(kCandidates);
    for (int32_t candidate = 0; candidate < candidates; ++candidate)
      for (int64_t row = 0; row < weights.rows; row += kTile)
        items_.push_back({static_cast<int32_t>(layers_.size()), candidate, static_cast<int32_t>(row)});
    layers_.push_back({factors_[hessian], arena.take<float>(weights.rows * weights.cols),
                       static_cast<int32_t>(weights.rows), work_.grids[job],
                       arena.take<typename Grid::Scale>(candidates * Grid::scales(weights.rows, weights.cols)),
                       arena.take<int8_t>(candidates * weights.rows * weights.cols),
                       arena.take<RowErrors>(candidates * weights.rows)});
    places_.push_back({job, hessian});
  }

  const GptqJob& job(size_t i) const { return work_.jobs[places_[i].job]; }

  void solve_items(cudaStream_t stream) const {
    if constexpr (std::is_same_v<Grid, Nvfp4Grid>) {
      int32_t most_rows = 0;
      for (const DeviceLayer<Grid>& layer : layers_) most_rows = std::max(most_rows, layer.rows);
      const dim3 ctas(divide_up(most_rows, kRowsPerCta), static_cast<unsigned>(layers_.size()));
      launch_kernel(block_scales_kernel, {ctas, 32 * kRowsPerCta}, stream, device_layers_);
    }
    const LaunchShape shape{static_cast<unsigned>(slots_), kTileThreads, kTileSharedBytes};
    launch_kernel(solve_items_kernel<Grid>, shape, stream, device_layers_, device_items_,
                  static_cast<int64_t>(items_.size()), factors_.padded_columns(), errors_);
  }

  // Chooses a layer's candidate and fetches its codes.
  void finish(size_t i, std::span<const RowErrors> errors, cudaStream_t stream) const {
    const DeviceLayer<Grid>& layer = layers_[i];
    const ConstMatrixView& weights = job(i).weights;
    auto [best, report] = best_candidate(errors, Grid::kClips, weights, factors_.on_host(places_[i].hessian));
    std::vector<typename Grid::Scale> scales(static_cast<size_t>(Grid::scales(weights.rows, weights.cols)));
    std::vector<int8_t> codes(static_cast<size_t>(weights.rows * weights.cols));
    download(std::span(scales), static_cast<const typename Grid::Scale*>(layer.scales + best * scales.size()), stream);
    download(std::span(codes), static_cast<const int8_t*>(layer.codes + best * codes.size()), stream);
    check_cuda(cudaStreamSynchronize(stream));
    work_.on_solved(places_[i].job, {layer.grid.result(weights, scales, std::move(codes)), std::move(report)});
  }

  const Work<Grid>& work_;
  const FactorBatch& factors_;
  std::vector<DeviceLayer<Grid>> layers_;
  std::vector<Place> places_;  // of the layers
  std::vector<SolverItem> items_;
  DeviceLayer<Grid>* device_layers_;
  SolverItem* device_items_;
  int64_t slots_;   // items that are solved at a time, each by a CTA
  double* errors_;  // (slots, kTile, P) scratch
};

template <typename Grid>
void solve(std::span<const GptqJob> jobs, double damping, const CudaPlace& place,
           const OnGptqSolved<typename Grid::Codes>& on_solved) {
  Work<Grid> work{
      jobs, on_solved, std::vector<Grid>(jobs.size()), std::vector<std::vector<typename Grid::Scale>>(jobs.size()), {}};
  std::vector<FactorJob> hessians;
  std::map<const StoredHessian*, size_t> place_of;
  for (size_t j = 0; j < jobs.size(); ++j) {
    check_columns(jobs[j].weights, jobs[j].hessian->size(), jobs[j].name);
    const auto [found, is_new] = place_of.emplace(jobs[j].hessian, hessians.size());
    if (is_new) hessians.push_back({jobs[j].name, jobs[j].hessian, damping});
    work.jobs_of.resize(hessians.size());
    work.jobs_of[found->second].push_back(j);
  }
  parallel_for(static_cast<int64_t>(jobs.size()), [&](int64_t j) { prepare(work, static_cast<size_t>(j)); });
  solve_in_waves<WaveLayers<Grid>>(work, hessians, kWaveBytes, place);
}

}  // namespace

void solve_gptq_cuda(std::span<const GptqJob> jobs, double damping, const CudaPlace& place,
                     const OnGptqSolved<RowScaledCodes>& on_solved) {
  solve<RowScaledGrid>(jobs, damping, place, on_solved);
}

void solve_gptq_nvfp4_cuda(std::span<const GptqJob> jobs, double damping, const CudaPlace& place,
                           const OnGptqSolved<Nvfp4Codes>& on_solved) {
  solve<Nvfp4Grid>(jobs, damping, place, on_solved);
}

}  // namespace thimble
