// cuda_slope.cu: the method `slope` for waves of layers (device_waves.cuh); each has a Hessian of its own, for its
// damping is its own.
#include <algorithm>
#include <memory>

#include "gptq/factor/device_waves.cuh"
#include "gptq/factor/factor_batch.cuh"
#include "gptq/slope/cuda_slope.h"
#include "gptq/slope/rate_model.h"
#include "gptq/slope/slope_solver.cuh"
#include "runtime/base/parallel.h"
#include "runtime/codes/trellis.h"
#include "runtime/cuda/cuda_memory.h"
#include "runtime/cuda/kernels/cuda_devices.h"

namespace thimble {
namespace {

constexpr size_t kWaveBytes = size_t{1} << 30;

// What all lanes read.
struct Work {
  std::span<const SlopeJob> jobs;
  const ChooseGrid& choose_grid;
  std::vector<HessianFactor> factors;  // by job; `upper` stays empty
};

// Device memory of one layer.
struct LayerMemory {
  float *weights, *row_sizes, *row_scales, *column_sizes, *column_scales;
  int32_t* codes;
  RowSums* sums;
};

// A wave's device memory.
struct WaveMemory {
  FactorBatch factors;
  std::vector<LayerMemory> layers;
  std::vector<SlopeItem> items;
  int64_t slots = 0;

  float* rates = nullptr;
  SlopeSolverJob* device_jobs = nullptr;
  SlopeItem* device_items = nullptr;
  int64_t* refused = nullptr;  // (layers)
  std::byte* scratch = nullptr;
};

// The segments that take longest begin first.
std::vector<SlopeItem> items_of(const Work& work, const Wave& wave) {
  std::vector<SlopeItem> items;
  for (size_t i = 0; i < wave.hessians.size(); ++i)
    for (int64_t row = 0; row < work.jobs[wave.hessians[i]].weights.rows; row += kTrellisRows)
      items.push_back({static_cast<int32_t>(i), static_cast<int32_t>(row)});
  std::ranges::stable_sort(items, std::greater{}, [&](const SlopeItem& item) {
    const ConstMatrixView& weights = work.jobs[wave.hessians[static_cast<size_t>(item.job)]].weights;
    return std::min(kTrellisRows, weights.rows - item.first_row) * weights.cols;
  });
  return items;
}

WaveMemory lay_out(const Work& work, const Wave& wave, int64_t most_slots, Arena& arena) {
  std::vector<FactorItem> factor_items;
  for (size_t job : wave.hessians)
    factor_items.push_back({work.jobs[job].hessian, &work.factors[job], &work.jobs[job].name});
  WaveMemory memory{FactorBatch(std::move(factor_items), wave.padded_columns, arena)};
  memory.items = items_of(work, wave);
  for (size_t job : wave.hessians) {
    const int64_t rows = work.jobs[job].weights.rows, columns = work.jobs[job].weights.cols;
    memory.layers.push_back({arena.take<float>(rows * columns), arena.take<float>(rows), arena.take<float>(rows),
                             arena.take<float>(columns), arena.take<float>(columns),
                             arena.take<int32_t>(rows * columns), arena.take<RowSums>(rows)});
  }
  memory.rates = arena.take<float>(static_cast<int64_t>(rate_table().values().size()));
  memory.device_jobs = arena.take<SlopeSolverJob>(static_cast<int64_t>(memory.layers.size()));
  memory.device_items = arena.take<SlopeItem>(static_cast<int64_t>(memory.items.size()));
  memory.refused = arena.take<int64_t>(static_cast<int64_t>(memory.layers.size()));
  memory.slots = std::min(static_cast<int64_t>(memory.items.size()), most_slots);
  memory.scratch = arena.take<std::byte>(memory.slots * static_cast<int64_t>(slope_slot_bytes(wave.padded_columns)));
  return memory;
}

// Solves one wave after another in the same memory.
class Lane {
 public:
  Lane(const Work& work, const WavePlan& plan, std::vector<SlopeResult>& results)
      : work_(work), memory_(static_cast<int64_t>(plan.lane_bytes)), most_slots_(plan.most_slots), results_(results) {}

  // Fills the results of the wave's jobs.
  void solve(const Wave& wave) {
    Arena arena(memory_.data());
    WaveMemory memory = lay_out(work_, wave, most_slots_, arena);
    memory.factors.factor(stream_, [&] { upload_layers(wave, memory); });
    solve_layers(wave, memory);
    collect(wave, memory);
  }

 private:
  void upload_layers(const Wave& wave, const WaveMemory& memory) {
    upload(memory.rates, rate_table().values(), upload_stream_);
    upload(memory.device_items, std::span<const SlopeItem>(memory.items), upload_stream_);
    check_cuda(cudaMemsetAsync(memory.refused, 0xff, wave.hessians.size() * sizeof(int64_t), upload_stream_));
    for (size_t i = 0; i < wave.hessians.size(); ++i)
      upload_rows(memory.layers[i].weights, work_.jobs[wave.hessians[i]].weights, upload_stream_);
    upload_stream_.wait();
  }

  void solve_layers(const Wave& wave, const WaveMemory& memory) {
    std::vector<SlopeSolverJob> jobs;
    std::vector<AxisSteps> rows, columns;
    for (size_t i = 0; i < wave.hessians.size(); ++i) {
      const size_t job = wave.hessians[i];
      const LayerMemory& layer = memory.layers[i];
      const CholeskyJob& factored = memory.factors.job(i);
      SlopeGrid grid = work_.choose_grid(job, work_.factors[job].by_column(memory.factors.diagonal(i, stream_)));
      check_slope_arguments(work_.jobs[job].weights, work_.factors[job].order.size(), grid, work_.jobs[job].row_weights,
                            work_.jobs[job].name);
      const WeightScales scales = fit_weight_scales(work_.jobs[job].weights);
      rows.emplace_back(grid.row_steps, scales.rows);
      columns.emplace_back(grid.column_steps, scales.columns);
      jobs.push_back({layer.weights, factored.upper, factored.order, static_cast<int32_t>(grid.row_steps.size()),
                      factored.columns, factored.live_columns, grid.trellis_bits, static_cast<float>(grid.rate_weight),
                      layer.row_sizes, layer.row_scales, layer.column_sizes, layer.column_scales, layer.codes,
                      layer.sums, memory.refused + i});
      results_[job].codes = {grid.trellis_bits, {}, std::move(grid.row_steps), std::move(grid.column_steps)};
    }
    for (size_t i = 0; i < jobs.size(); ++i) {
      const LayerMemory& layer = memory.layers[i];
      upload(layer.row_sizes, std::span<const float>(rows[i].sizes), stream_);
      upload(layer.row_scales, std::span<const float>(rows[i].scales), stream_);
      upload(layer.column_sizes, std::span<const float>(columns[i].sizes), stream_);
      upload(layer.column_scales, std::span<const float>(columns[i].scales), stream_);
    }
    upload(memory.device_jobs, std::span<const SlopeSolverJob>(jobs), stream_);
    solve_slope_items(memory.device_jobs, memory.device_items, static_cast<int64_t>(memory.items.size()),
                      wave.padded_columns, memory.rates, memory.scratch, memory.slots, stream_);
    stream_.wait();  // for what the uploads read
  }

  void collect(const Wave& wave, const WaveMemory& memory) {
    std::vector<int64_t> refused(wave.hessians.size());
    download(std::span(refused), static_cast<const int64_t*>(memory.refused), stream_);
    std::vector<std::vector<RowSums>> sums;
    for (size_t i = 0; i < wave.hessians.size(); ++i) {
      const size_t job = wave.hessians[i];
      const ConstMatrixView& weights = work_.jobs[job].weights;
      std::vector<int32_t>& codes = results_[job].codes.codes;
      codes.resize(static_cast<size_t>(weights.rows * weights.cols));
      download(std::span(codes), static_cast<const int32_t*>(memory.layers[i].codes), stream_);
      sums.emplace_back(static_cast<size_t>(weights.rows));
      download(std::span(sums.back()), static_cast<const RowSums*>(memory.layers[i].sums), stream_);
    }
    stream_.wait();
    for (size_t i = 0; i < wave.hessians.size(); ++i) {
      const SlopeJob& job = work_.jobs[wave.hessians[i]];
      if (refused[i] >= 0)
        refuse_weight(job.weights, refused[i] / job.weights.cols, refused[i] % job.weights.cols, job.name);
      HessianFactor factor = work_.factors[wave.hessians[i]];
      factor.damping = memory.factors.damping(i);
      results_[wave.hessians[i]].report = slope_report(sums[i], job.weights, &factor, job.row_weights);
    }
  }

  const Work& work_;
  DeviceArray<std::byte> memory_;
  int64_t most_slots_;
  std::vector<SlopeResult>& results_;
  CudaStream stream_, upload_stream_;
};

// Without weights there is nothing to launch: the CPU answers.
bool is_empty(const SlopeJob& job) { return job.weights.rows == 0 || job.weights.cols == 0; }

SlopeResult solve_empty(const SlopeJob& job, size_t index, const ChooseGrid& choose_grid) {
  const HessianFactor factor = factor_hessian(*job.hessian, job.damping, job.name, job.order);
  return solve_slope(job.weights, &factor, choose_grid(index, factor.upper_diagonal()), job.row_weights, job.name);
}

}  // namespace

std::vector<SlopeResult> solve_slope_cuda(std::span<const SlopeJob> jobs, const ChooseGrid& choose_grid,
                                          const CudaPlace& place, const OnSlopeSolved& on_solved) {
  Work work{jobs, choose_grid, std::vector<HessianFactor>(jobs.size())};
  std::vector<int64_t> columns(jobs.size());
  parallel_for(static_cast<int64_t>(jobs.size()), [&](int64_t index) {
    const auto j = static_cast<size_t>(index);
    work.factors[j] = unfactored_hessian(*jobs[j].hessian, jobs[j].damping, jobs[j].name, jobs[j].order);
    columns[j] = is_empty(jobs[j]) ? 0 : jobs[j].hessian->size();
  });
  std::vector<SlopeResult> results(jobs.size());
  WavePlan plan;
  {
    DeviceScope device(place.ordinal);
    plan = plan_waves(
        columns, slope_slots(), kWaveBytes,
        [&](const Wave& wave, int64_t most_slots) {
          Arena arena(nullptr);
          lay_out(work, wave, most_slots, arena);
          return arena.bytes();
        },
        usable_memory(cuda_free_memory(place.ordinal), place.memory_limit_bytes));
  }
  solve_waves(
      plan, place.ordinal, [&] { return std::make_unique<Lane>(work, plan, results); },
      [&](const Wave& wave) {
        for (size_t job : wave.hessians)
          if (on_solved) on_solved(job);
      });
  for (size_t j = 0; j < jobs.size(); ++j) {
    if (!is_empty(jobs[j])) continue;
    results[j] = solve_empty(jobs[j], j, choose_grid);
    if (on_solved) on_solved(j);
  }
  return results;
}

}  // namespace thimble
