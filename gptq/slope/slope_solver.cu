// slope_solver.cu: slope_solver.cpp for waves of layers (device_waves.cuh), with one segment of the trellis per CTA
// (slope_segments.cuh). R = output rows, K = input columns.
#include "gptq/slope/slope_solver.h"

#include <algorithm>
#include <limits>

#include "gptq/factor/device_waves.cuh"
#include "gptq/slope/slope_segments.cuh"

namespace thimble {
namespace {

using namespace slope_segments;

// What all lanes read.
struct Work {
  std::span<const SlopeJob> jobs;
  const ChooseGrid& choose_grid;
  const OnSlopeSolved& on_solved;
};

template <typename T>
std::vector<T> downloaded(const T* from, size_t count, cudaStream_t stream) {
  std::vector<T> values(count);
  download(std::span(values), from, stream);
  check_cuda(cudaStreamSynchronize(stream));
  return values;
}

Matrix widened(const StoredMatrixView& weights) {
  Matrix values(weights.rows, weights.cols);
  weights.read(values.view());
  return values;
}

// A wave's layers; see solve_in_waves(). Each has a Hessian of its own, for its damping is its own.
class WaveLayers {
 public:
  WaveLayers(const Work& work, const Wave& wave, const FactorBatch& factors, int64_t most_slots, Arena& arena)
      : work_(work), jobs_(wave.hessians), factors_(factors) {
    const auto count = static_cast<int64_t>(jobs_.size());
    refused_ = arena.take<int64_t>(count);
    widest_ = arena.take<int32_t>(count);
    for (size_t i = 0; i < jobs_.size(); ++i) add_layer(i, arena);
    // The segments that take longest begin first.
    std::ranges::stable_sort(items_, std::greater{}, [&](const SlopeItem& item) {
      const DeviceLayer& layer = layers_[static_cast<size_t>(item.layer)];
      return int64_t{std::min(kSegmentRows, layer.rows - item.first_row)} * layer.factor.columns;
    });
    rates_ = arena.take<float>(static_cast<int64_t>(rate_table().values().size()));
    device_layers_ = arena.take<DeviceLayer>(count);
    device_items_ = arena.take<SlopeItem>(static_cast<int64_t>(items_.size()));
    slots_ = std::min(static_cast<int64_t>(items_.size()), most_slots);
    has_helpers_ = compute_capability() >= 90 && slots_ * kHelpedCluster <= multiprocessors();
    scratch_ = arena.take<double>(slots_ * Slot::elements(factors.padded_columns(), has_helpers_));
  }

  static int64_t most_slots() { return resident_ctas(solve_slope_kernel, kThreads, sizeof(SolverMemory)); }

  void upload(cudaStream_t stream) const {
    thimble::upload(rates_, rate_table().values(), stream);
    thimble::upload(device_items_, std::span<const SlopeItem>(items_), stream);
    check_cuda(cudaMemsetAsync(refused_, 0xff, jobs_.size() * sizeof(int64_t), stream));
    check_cuda(cudaMemsetAsync(widest_, 0, jobs_.size() * sizeof(int32_t), stream));
    for (size_t i = 0; i < jobs_.size(); ++i) upload_rows(layers_[i].weights, job(i).weights, layers_[i].codes, stream);
  }

  void solve(cudaStream_t stream) {
    std::vector<std::vector<AxisStep>> steps;  // lives until the stream has been waited for
    std::vector<SteppedCodes> results;
    for (size_t i = 0; i < jobs_.size(); ++i) results.push_back(choose_steps(i, steps, stream));
    if (!items_.empty()) {
      thimble::upload(device_layers_, std::span<const DeviceLayer>(layers_), stream);
      const int ctas = has_helpers_ ? kHelpedCluster : 1;
      const LaunchShape shape{static_cast<unsigned>(slots_ * ctas), kThreads, static_cast<int>(sizeof(SolverMemory)),
                              ctas};
      launch_kernel(solve_slope_kernel, shape, stream, device_layers_, device_items_,
                    static_cast<int64_t>(items_.size()), factors_.padded_columns(), rates_, scratch_, has_helpers_);
      narrow_codes<int8_t>(0, jobs_.size(), stream);
    }
    for (size_t i = 0; i < jobs_.size(); ++i) finish(i, std::move(results[i]), stream);
  }

 private:
  void add_layer(size_t i, Arena& arena) {
    const int64_t rows = job(i).weights.rows, columns = job(i).weights.cols;
    for (int64_t row = 0; row < rows; row += kTrellisRows)
      items_.push_back({static_cast<int32_t>(i), static_cast<int32_t>(row)});
    layers_.push_back({factors_[i], arena.take<float>(rows * columns), static_cast<int32_t>(rows), 0, 0, 0,
                       arena.take<AxisStep>(rows), arena.take<AxisStep>(columns), arena.take<int32_t>(rows * columns),
                       arena.take<RowSums>(rows), refused_ ? refused_ + i : nullptr, widest_ ? widest_ + i : nullptr});
  }

  const SlopeJob& job(size_t i) const { return work_.jobs[jobs_[i]]; }

  // Enqueues the upload of a layer's steps, now that its factor is known. Codes are none yet.
  SteppedCodes choose_steps(size_t i, std::vector<std::vector<AxisStep>>& steps, cudaStream_t stream) {
    DeviceLayer& layer = layers_[i];
    SlopeGrid grid = work_.choose_grid(jobs_[i], factors_.upper_diagonal(i));
    check_slope_arguments(job(i).weights, static_cast<size_t>(job(i).factor.hessian->size()), grid, job(i).row_weights,
                          job(i).factor.name);
    const WeightScales scales = job(i).scales ? *job(i).scales : fit_weight_scales(widened(job(i).weights));
    steps.push_back(axis_steps(grid.row_steps, scales.rows));
    thimble::upload(layer.row_steps, std::span<const AxisStep>(steps.back()), stream);
    steps.push_back(axis_steps(grid.column_steps, scales.columns));
    thimble::upload(layer.column_steps, std::span<const AxisStep>(steps.back()), stream);
    layer.trellis_bits = grid.trellis_bits;
    layer.rate_weight = static_cast<float>(grid.rate_weight);
    layer.cost_scale = path_cost_scale(layer.rate_weight);
    return {grid.trellis_bits, {}, std::move(grid.row_steps), std::move(grid.column_steps)};
  }

  // Of `count` layers of the wave, from the i-th on.
  template <typename Narrow>
  void narrow_codes(size_t i, size_t count, cudaStream_t stream) const {
    const dim3 blocks(static_cast<unsigned>(2 * multiprocessors()), static_cast<unsigned>(count));
    launch_kernel(narrow_codes_kernel<Narrow>, {blocks, kThreads}, stream, device_layers_ + i);
  }

  void finish(size_t i, SteppedCodes result, cudaStream_t stream) const {
    const StoredMatrixView& weights = job(i).weights;
    const DeviceLayer& layer = layers_[i];
    std::vector<RowSums> sums(static_cast<size_t>(weights.rows));
    std::vector<int8_t> codes(static_cast<size_t>(weights.rows * weights.cols));  // while the device solves
    int64_t refused = -1;
    int32_t widest = 0;
    download(std::span(&refused, 1), static_cast<const int64_t*>(layer.refused), stream);
    download(std::span(&widest, 1), static_cast<const int32_t*>(layer.widest), stream);
    download(std::span(sums), static_cast<const RowSums*>(layer.sums), stream);
    download(std::span(codes), reinterpret_cast<const int8_t*>(layer.weights), stream);
    check_cuda(cudaStreamSynchronize(stream));
    if (refused >= 0) refuse_weight(weights, refused / weights.cols, refused % weights.cols, job(i).factor.name);
    if (widest <= std::numeric_limits<int8_t>::max()) {
      result.codes = CodeArray(std::move(codes));
    } else if (widest <= std::numeric_limits<int16_t>::max()) {
      narrow_codes<int16_t>(i, 1, stream);
      result.codes = CodeArray(downloaded(reinterpret_cast<const int16_t*>(layer.weights), codes.size(), stream));
    } else {
      result.codes = CodeArray(downloaded(static_cast<const int32_t*>(layer.codes), codes.size(), stream));
    }
    const HessianFactor factor = factors_.on_host(i);
    work_.on_solved(jobs_[i], {std::move(result), slope_report(sums, weights, &factor, job(i).row_weights)});
  }

  const Work& work_;
  std::vector<size_t> jobs_;
  const FactorBatch& factors_;
  std::vector<DeviceLayer> layers_;  // by job of the wave
  std::vector<SlopeItem> items_;
  int64_t slots_;     // items that are solved at a time, each by a CTA
  bool has_helpers_;  // or by a cluster
  // In device memory:
  float* rates_;
  DeviceLayer* device_layers_;
  SlopeItem* device_items_;
  int64_t* refused_;
  int32_t* widest_;
  double* scratch_;  // (slots) of Slot
};

}  // namespace

void solve_slope_cuda(std::span<const SlopeJob> jobs, const ChooseGrid& choose_grid, const CudaPlace& place,
                      const OnSlopeSolved& on_solved) {
  constexpr size_t kWaveBytes = size_t{1} << 30;
  const Work work{jobs, choose_grid, on_solved};
  std::vector<FactorJob> hessians;
  for (const SlopeJob& job : jobs) hessians.push_back(job.factor);
  solve_in_waves<WaveLayers>(work, hessians, kWaveBytes, place);
}

}  // namespace thimble
