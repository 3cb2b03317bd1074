// cuda_gptq.cu: GPTQ of waves of Hessians with their layers (device_waves.cuh).
#include "gptq/trace/cuda_gptq.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <memory>
#include <numeric>

#include "gptq/factor/device_waves.cuh"
#include "gptq/factor/factor_batch.cuh"
#include "gptq/trace/gptq_solver.cuh"
#include "gptq/trace/grid.h"
#include "gptq/trace/nvfp4_grid.h"
#include "runtime/base/error.h"
#include "runtime/base/parallel.h"
#include "runtime/cuda/cuda_memory.h"
#include "runtime/cuda/kernels/cuda_context.cuh"
#include "runtime/cuda/kernels/cuda_devices.h"
#include "runtime/cuda/kernels/cuda_numeric.cuh"

namespace thimble {
namespace {

constexpr size_t kWaveBytes = size_t{256} << 20;
// Errors of the rows that are being solved; with fewer slots, fewer CTAs work at a time.
constexpr size_t kErrorBytes = size_t{1} << 30;
constexpr uint16_t kFp16Infinity = 0x7c00;

// What differs between the grids.
void make_grid(const GptqJob& job, RowScaledGrid& grid) { grid.max_code = job.max_code; }
void make_grid(const GptqJob& job, Nvfp4Grid& grid) { grid.tensor_scale = nvfp4_tensor_scale(job.weights); }

// `scales`: of all candidates.
void check_scales(const GptqJob& job, const RowScaledGrid& grid, std::span<const uint16_t> scales) {
  auto rows = static_cast<size_t>(job.weights.rows);
  for (size_t first = 0; first < scales.size(); first += rows)
    if (std::ranges::find(scales.subspan(first, rows), kFp16Infinity) != scales.subspan(first, rows).end())
      row_scales(job.weights, kClipFractions[first / rows], grid.max_code, job.name);  // throws, naming the row
}
void check_scales(const GptqJob&, const Nvfp4Grid&, std::span<const uint8_t>) {}

// Codes 0 with the scales of one candidate.
RowScaledCodes codes_with(const GptqJob& job, const RowScaledGrid& grid, std::span<const uint16_t> scales) {
  return {grid.max_code,
          std::vector<int8_t>(static_cast<size_t>(job.weights.rows * job.weights.cols)),
          {scales.begin(), scales.end()}};
}
Nvfp4Codes codes_with(const GptqJob& job, const Nvfp4Grid& grid, std::span<const uint8_t> scales) {
  return {std::vector<uint8_t>(static_cast<size_t>(job.weights.rows * nvfp4_row_bytes(job.weights.cols))),
          {scales.begin(), scales.end()},
          grid.tensor_scale};
}

GptqResult solve_on_cpu(const GptqJob& job, const RowScaledGrid& grid, const HessianFactor& factor) {
  return solve_gptq(job.weights, factor, grid.max_code, job.name);
}
Nvfp4GptqResult solve_on_cpu(const GptqJob& job, const Nvfp4Grid&, const HessianFactor& factor) {
  return solve_gptq_nvfp4(job.weights, factor, job.name);
}

// What all lanes read.
template <typename Grid>
struct Work {
  std::span<const SymmetricMatrix* const> hessians;
  std::span<const GptqJob> jobs;
  std::vector<Grid> grids;                   // by job
  std::vector<std::vector<size_t>> jobs_of;  // by Hessian
  std::vector<HessianFactor> factors;        // by Hessian; `upper` stays empty
};

template <typename Grid>
std::vector<size_t> jobs_of(const Work<Grid>& work, const Wave& wave) {
  std::vector<size_t> jobs;
  for (size_t h : wave.hessians) jobs.insert(jobs.end(), work.jobs_of[h].begin(), work.jobs_of[h].end());
  return jobs;
}

// A wave's device memory and what the kernels are told about it.
template <typename Grid>
struct WaveMemory {
  FactorBatch factors;
  std::vector<size_t> jobs;
  std::vector<SolverJob<Grid>> solver = {};  // one per layer
  std::vector<SolverItem> items = {};
  int64_t slots = 0;
  int64_t rows = 0;    // of all layers
  int64_t scales = 0;  // of one candidate of all layers

  SolverJob<Grid>* device_solver = nullptr;
  SolverItem* device_items = nullptr;
  // Layer after layer, each with all its C candidates:
  typename Grid::Scale* all_scales = nullptr;  // (C * scales)
  double* squared_errors = nullptr;            // (C * rows)
  double* weighted_losses = nullptr;           // (C * rows)
  double* errors = nullptr;                    // (slots, kTile, padded_columns)
};

template <typename Grid>
void lay_out_layers(const Work<Grid>& work, const Wave& wave, int64_t most_slots, Arena& arena,
                    WaveMemory<Grid>& memory) {
  int64_t padded = wave.padded_columns;
  for (size_t job : memory.jobs) {
    ConstMatrixView weights = work.jobs[job].weights;
    memory.rows += weights.rows;
    memory.scales += Grid::scales(weights.rows, weights.cols);
  }
  constexpr int64_t kCount = kCandidates<Grid>;
  memory.all_scales = arena.take<typename Grid::Scale>(kCount * memory.scales);
  memory.squared_errors = arena.take<double>(kCount * memory.rows);
  memory.weighted_losses = arena.take<double>(kCount * memory.rows);
  int64_t first = 0, first_scale = 0;  // of the layer's part of these
  for (size_t job : memory.jobs) {
    const GptqJob& layer = work.jobs[job];
    auto hessian = static_cast<size_t>(std::ranges::find(wave.hessians, layer.hessian_index) - wave.hessians.begin());
    const CholeskyJob& factored = memory.factors.job(hessian);
    int64_t rows = layer.weights.rows;
    auto part = [](auto* all, int64_t begin) { return all ? all + begin : nullptr; };
    memory.solver.push_back({arena.take<float>(rows * layer.weights.cols), factored.upper, factored.order,
                             static_cast<int32_t>(rows), factored.columns, factored.live_columns, work.grids[job],
                             part(memory.all_scales, first_scale), arena.take<int8_t>(kCount * rows * padded),
                             part(memory.squared_errors, first), part(memory.weighted_losses, first)});
    for (int candidate = 0; candidate < kCount; ++candidate)
      for (int64_t row = 0; row < rows; row += kTile)
        memory.items.push_back({static_cast<int32_t>(memory.solver.size() - 1), candidate, static_cast<int32_t>(row)});
    first += kCount * rows;
    first_scale += kCount * Grid::scales(rows, layer.weights.cols);
  }
  memory.device_solver = arena.take<SolverJob<Grid>>(static_cast<int64_t>(memory.solver.size()));
  memory.device_items = arena.take<SolverItem>(static_cast<int64_t>(memory.items.size()));
  int64_t slot = solver_slot_elements(padded);
  int64_t affordable = std::max<int64_t>(1, static_cast<int64_t>(kErrorBytes / sizeof(double)) / slot);
  memory.slots = std::min({static_cast<int64_t>(memory.items.size()), most_slots, affordable});
  memory.errors = arena.take<double>(memory.slots * slot);
}

template <typename Grid>
WaveMemory<Grid> lay_out(const Work<Grid>& work, const Wave& wave, int64_t most_slots, Arena& arena) {
  std::vector<FactorItem> items;
  for (size_t h : wave.hessians)
    items.push_back({work.hessians[h], &work.factors[h], &work.jobs[work.jobs_of[h].front()].name});
  WaveMemory<Grid> memory{FactorBatch(std::move(items), wave.padded_columns, arena), jobs_of(work, wave)};
  lay_out_layers(work, wave, most_slots, arena, memory);
  return memory;
}

template <typename Grid>
size_t wave_bytes(const Work<Grid>& work, const Wave& wave, int64_t most_slots) {
  Arena arena(nullptr);
  lay_out(work, wave, most_slots, arena);
  return arena.bytes();
}

// Serial, so that the order of the additions is the CPU's.
double sum(std::span<const double> values) { return std::accumulate(values.begin(), values.end(), 0.0); }

// Solves one wave after another in the same memory.
template <typename Grid>
class Lane {
 public:
  Lane(const Work<Grid>& work, const WavePlan& plan, std::vector<typename Grid::Result>& results)
      : work_(work), memory_(static_cast<int64_t>(plan.lane_bytes)), most_slots_(plan.most_slots), results_(results) {}

  // Fills the results of the wave's jobs.
  void solve(const Wave& wave) {
    Arena arena(memory_.data());
    WaveMemory<Grid> memory = lay_out(work_, wave, most_slots_, arena);
    memory.factors.factor(stream_, [&] { upload_layers(memory); });
    solve_layers(wave, memory);
    collect(wave, memory);
  }

 private:
  void upload_layers(const WaveMemory<Grid>& memory) {
    upload(memory.device_solver, std::span<const SolverJob<Grid>>(memory.solver), upload_stream_);
    upload(memory.device_items, std::span<const SolverItem>(memory.items), upload_stream_);
    for (size_t i = 0; i < memory.jobs.size(); ++i)
      upload_rows(memory.solver[i].weights, work_.jobs[memory.jobs[i]].weights, upload_stream_);
    upload_stream_.wait();
  }

  void solve_layers(const Wave& wave, const WaveMemory<Grid>& memory) {
    int64_t most_rows = 0;
    for (const SolverJob<Grid>& job : memory.solver) most_rows = std::max<int64_t>(most_rows, job.rows);
    compute_scales(memory.device_solver, static_cast<int64_t>(memory.solver.size()), most_rows, stream_);
    solve_items(memory.device_solver, memory.device_items, static_cast<int64_t>(memory.items.size()),
                wave.padded_columns, memory.errors, memory.slots, stream_);
  }

  // Chooses each layer's candidate and fetches its codes.
  void collect(const Wave& wave, const WaveMemory<Grid>& memory) {
    constexpr auto kCount = static_cast<size_t>(kCandidates<Grid>);
    std::vector<typename Grid::Scale> scales(kCount * static_cast<size_t>(memory.scales));
    std::vector<double> squared(kCount * static_cast<size_t>(memory.rows)), weighted(squared.size());
    download(std::span(scales), memory.all_scales, stream_);
    download(std::span(squared), memory.squared_errors, stream_);
    download(std::span(weighted), memory.weighted_losses, stream_);
    stream_.wait();
    size_t first = 0, first_scale = 0;
    for (size_t i = 0; i < memory.jobs.size(); ++i) {
      const GptqJob& job = work_.jobs[memory.jobs[i]];
      const Grid& grid = work_.grids[memory.jobs[i]];
      auto rows = static_cast<size_t>(job.weights.rows);
      auto scale_count = static_cast<size_t>(Grid::scales(job.weights.rows, job.weights.cols));
      std::span layer_scales = std::span(scales).subspan(first_scale, kCount * scale_count);
      check_scales(job, grid, layer_scales);

      auto part = [&](auto& all, size_t candidate) { return std::span(all).subspan(first + candidate * rows, rows); };
      std::array<double, kCount> totals;
      for (size_t candidate = 0; candidate < kCount; ++candidate) totals[candidate] = sum(part(squared, candidate));
      auto best = static_cast<size_t>(std::ranges::min_element(totals) - totals.begin());
      auto hessian = static_cast<size_t>(std::ranges::find(wave.hessians, job.hessian_index) - wave.hessians.begin());
      typename Grid::Result& result = results_[memory.jobs[i]];
      result.report = {Grid::kClips[best], totals[best] / static_cast<double>(job.weights.rows * job.weights.cols),
                       sum(part(weighted, best)), memory.factors.damping(hessian),
                       work_.factors[job.hessian_index].dead_columns};
      result.codes = codes_with(job, grid, layer_scales.subspan(best * scale_count, scale_count));
      download(std::span(result.codes.codes),
               finish_codes(memory.solver[i], static_cast<int>(best), wave.padded_columns, stream_), stream_);
      first += kCount * rows;
      first_scale += kCount * scale_count;
    }
    stream_.wait();
  }

  const Work<Grid>& work_;
  DeviceArray<std::byte> memory_;
  int64_t most_slots_;
  std::vector<typename Grid::Result>& results_;
  CudaStream stream_, upload_stream_;
};

// Without weights there is nothing to launch: the CPU answers.
bool is_empty(const GptqJob& job) { return job.weights.rows == 0 || job.weights.cols == 0; }

template <typename Grid>
Work<Grid> check_work(std::span<const SymmetricMatrix* const> hessians, std::span<const GptqJob> jobs, double damping) {
  Work<Grid> work{hessians, jobs, std::vector<Grid>(jobs.size()), std::vector<std::vector<size_t>>(hessians.size()),
                  std::vector<HessianFactor>(hessians.size())};
  for (size_t j = 0; j < jobs.size(); ++j) {
    assert(jobs[j].hessian_index < hessians.size());
    int64_t columns = hessians[jobs[j].hessian_index]->size();
    if (jobs[j].weights.cols != columns)
      throw Error(ExitCode::kInternal, "tensor '" + jobs[j].name + "': " + std::to_string(jobs[j].weights.cols) +
                                           " columns, its Hessian has " + std::to_string(columns));
    if (!is_empty(jobs[j])) work.jobs_of[jobs[j].hessian_index].push_back(j);
  }
  parallel_for(static_cast<int64_t>(hessians.size()), [&](int64_t index) {
    auto h = static_cast<size_t>(index);
    if (work.jobs_of[h].empty()) return;
    work.factors[h] = unfactored_hessian(*hessians[h], damping, jobs[work.jobs_of[h].front()].name);
  });
  parallel_for(static_cast<int64_t>(jobs.size()), [&](int64_t index) {
    auto j = static_cast<size_t>(index);
    make_grid(jobs[j], work.grids[j]);
  });
  return work;
}

template <typename Grid>
std::vector<typename Grid::Result> solve(std::span<const SymmetricMatrix* const> hessians,
                                         std::span<const GptqJob> jobs, double damping, const CudaPlace& place,
                                         const std::function<void(size_t, const typename Grid::Result&)>& on_solved) {
  Work<Grid> work = check_work<Grid>(hessians, jobs, damping);
  std::vector<typename Grid::Result> results(jobs.size());
  std::vector<int64_t> columns;
  for (size_t h = 0; h < hessians.size(); ++h) columns.push_back(work.jobs_of[h].empty() ? 0 : hessians[h]->size());
  WavePlan plan;
  {
    DeviceScope device(place.ordinal);
    plan = plan_waves(
        columns, solver_slots<Grid>(), kWaveBytes,
        [&](const Wave& wave, int64_t most_slots) { return wave_bytes(work, wave, most_slots); },
        usable_memory(cuda_free_memory(place.ordinal), place.memory_limit_bytes));
  }
  solve_waves(
      plan, place.ordinal, [&] { return std::make_unique<Lane<Grid>>(work, plan, results); },
      [&](const Wave& wave) {
        for (size_t job : jobs_of(work, wave))
          if (on_solved) on_solved(job, results[job]);
      });
  for (size_t j = 0; j < jobs.size(); ++j) {
    if (!is_empty(jobs[j])) continue;
    HessianFactor factor = factor_hessian(*hessians[jobs[j].hessian_index], damping, jobs[j].name);
    results[j] = solve_on_cpu(jobs[j], work.grids[j], factor);
    if (on_solved) on_solved(j, results[j]);
  }
  return results;
}

}  // namespace

std::vector<GptqResult> solve_gptq_cuda(std::span<const SymmetricMatrix* const> hessians, std::span<const GptqJob> jobs,
                                        double damping, const CudaPlace& place, const OnGptqSolved& on_solved) {
  return solve<RowScaledGrid>(hessians, jobs, damping, place, on_solved);
}

std::vector<Nvfp4GptqResult> solve_gptq_nvfp4_cuda(std::span<const SymmetricMatrix* const> hessians,
                                                   std::span<const GptqJob> jobs, double damping,
                                                   const CudaPlace& place, const OnNvfp4GptqSolved& on_solved) {
  return solve<Nvfp4Grid>(hessians, jobs, damping, place, on_solved);
}

}  // namespace thimble
