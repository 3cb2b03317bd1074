// cuda_gptq.cu: GPTQ of waves of Hessians with their layers (device_waves.cuh).
#include "gptq/cuda_gptq.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <memory>
#include <numeric>

#include "gptq/device_waves.cuh"
#include "gptq/factor_batch.cuh"
#include "gptq/gptq_solver.cuh"
#include "gptq/grid.h"
#include "runtime/cuda_context.cuh"
#include "runtime/cuda_devices.h"
#include "runtime/cuda_numeric.cuh"
#include "runtime/error.h"
#include "runtime/memory_plan.h"
#include "runtime/parallel.h"

namespace thimble {
namespace {

constexpr size_t kWaveBytes = size_t{256} << 20;
// Errors of the rows that are being solved; with fewer slots, fewer CTAs work at a time.
constexpr size_t kErrorBytes = size_t{1} << 30;
constexpr uint16_t kFp16Infinity = 0x7c00;

// What all lanes read.
struct Work {
  std::span<const SymmetricMatrix* const> hessians;
  std::span<const GptqJob> jobs;
  std::vector<std::vector<size_t>> jobs_of;  // by Hessian
  std::vector<HessianFactor> factors;        // by Hessian; `upper` stays empty
};

std::vector<size_t> jobs_of(const Work& work, const Wave& wave) {
  std::vector<size_t> jobs;
  for (size_t h : wave.hessians) jobs.insert(jobs.end(), work.jobs_of[h].begin(), work.jobs_of[h].end());
  return jobs;
}

// A wave's device memory and what the kernels are told about it.
struct WaveMemory {
  FactorBatch factors;
  std::vector<size_t> jobs;
  std::vector<SolverJob> solver;  // one per layer
  std::vector<float*> weights;
  std::vector<SolverItem> items;
  int64_t slots = 0;
  int64_t rows = 0;  // of all layers

  SolverJob* device_solver = nullptr;
  SolverItem* device_items = nullptr;
  uint16_t* row_scales = nullptr;     // (kClips * rows), layer after layer, as are the next two
  double* squared_errors = nullptr;   // (kClips * rows)
  double* weighted_losses = nullptr;  // (kClips * rows)
  double* errors = nullptr;           // (slots, kTile, padded_columns)
};

void lay_out_layers(const Work& work, const Wave& wave, int64_t most_slots, Arena& arena, WaveMemory& memory) {
  int64_t padded = wave.padded_columns;
  for (size_t job : memory.jobs) memory.rows += work.jobs[job].weights.rows;
  memory.row_scales = arena.take<uint16_t>(kClips * memory.rows);
  memory.squared_errors = arena.take<double>(kClips * memory.rows);
  memory.weighted_losses = arena.take<double>(kClips * memory.rows);
  int64_t first = 0;  // of the layer's part of these
  for (size_t job : memory.jobs) {
    const GptqJob& layer = work.jobs[job];
    auto hessian = static_cast<size_t>(std::ranges::find(wave.hessians, layer.hessian_index) - wave.hessians.begin());
    const CholeskyJob& factored = memory.factors.job(hessian);
    int64_t rows = layer.weights.rows;
    auto part = [&](auto* all) { return all ? all + first : nullptr; };
    memory.weights.push_back(arena.take<float>(rows * layer.weights.cols));
    memory.solver.push_back({memory.weights.back(), factored.upper, factored.order, static_cast<int32_t>(rows),
                             factored.columns, factored.live_columns, layer.max_code, part(memory.row_scales),
                             arena.take<int8_t>(kClips * rows * padded), part(memory.squared_errors),
                             part(memory.weighted_losses)});
    for (int clip = 0; clip < kClips; ++clip)
      for (int64_t row = 0; row < rows; row += kTile)
        memory.items.push_back({static_cast<int32_t>(memory.solver.size() - 1), clip, static_cast<int32_t>(row)});
    first += kClips * rows;
  }
  memory.device_solver = arena.take<SolverJob>(static_cast<int64_t>(memory.solver.size()));
  memory.device_items = arena.take<SolverItem>(static_cast<int64_t>(memory.items.size()));
  int64_t slot = solver_slot_elements(padded);
  int64_t affordable = std::max<int64_t>(1, static_cast<int64_t>(kErrorBytes / sizeof(double)) / slot);
  memory.slots = std::min({static_cast<int64_t>(memory.items.size()), most_slots, affordable});
  memory.errors = arena.take<double>(memory.slots * slot);
}

WaveMemory lay_out(const Work& work, const Wave& wave, int64_t most_slots, Arena& arena) {
  std::vector<FactorItem> items;
  for (size_t h : wave.hessians)
    items.push_back({work.hessians[h], &work.factors[h], &work.jobs[work.jobs_of[h].front()].name});
  WaveMemory memory{FactorBatch(std::move(items), wave.padded_columns, arena), jobs_of(work, wave)};
  lay_out_layers(work, wave, most_slots, arena, memory);
  return memory;
}

size_t wave_bytes(const Work& work, const Wave& wave, int64_t most_slots) {
  Arena arena(nullptr);
  lay_out(work, wave, most_slots, arena);
  return arena.bytes();
}

// Serial, so that the order of the additions is the CPU's.
double sum(std::span<const double> values) { return std::accumulate(values.begin(), values.end(), 0.0); }

// Solves one wave after another in the same memory.
class Lane {
 public:
  Lane(const Work& work, const WavePlan& plan, std::vector<GptqResult>& results)
      : work_(work), memory_(static_cast<int64_t>(plan.lane_bytes)), most_slots_(plan.most_slots), results_(results) {}

  // Fills the results of the wave's jobs.
  void solve(const Wave& wave) {
    Arena arena(memory_.data());
    WaveMemory memory = lay_out(work_, wave, most_slots_, arena);
    memory.factors.factor(stream_, [&] { upload_layers(memory); });
    solve_layers(wave, memory);
    collect(wave, memory);
  }

 private:
  void upload_layers(const WaveMemory& memory) {
    upload(memory.device_solver, std::span<const SolverJob>(memory.solver), upload_stream_);
    upload(memory.device_items, std::span<const SolverItem>(memory.items), upload_stream_);
    for (size_t i = 0; i < memory.jobs.size(); ++i)
      upload_rows(memory.weights[i], work_.jobs[memory.jobs[i]].weights, upload_stream_);
    upload_stream_.wait();
  }

  void solve_layers(const Wave& wave, const WaveMemory& memory) {
    int64_t most_rows = 0;
    for (const SolverJob& job : memory.solver) most_rows = std::max<int64_t>(most_rows, job.rows);
    compute_row_scales(memory.device_solver, static_cast<int64_t>(memory.solver.size()), most_rows, stream_);
    solve_items(memory.device_solver, memory.device_items, static_cast<int64_t>(memory.items.size()),
                wave.padded_columns, memory.errors, memory.slots, stream_);
  }

  // Chooses each layer's clip and fetches its codes.
  void collect(const Wave& wave, const WaveMemory& memory) {
    auto count = static_cast<size_t>(kClips * memory.rows);
    std::vector<uint16_t> scales(count);
    std::vector<double> squared(count), weighted(count);
    download(std::span(scales), memory.row_scales, stream_);
    download(std::span(squared), memory.squared_errors, stream_);
    download(std::span(weighted), memory.weighted_losses, stream_);
    stream_.wait();
    size_t first = 0;
    for (size_t i = 0; i < memory.jobs.size(); ++i) {
      const GptqJob& job = work_.jobs[memory.jobs[i]];
      auto rows = static_cast<size_t>(job.weights.rows);
      auto part = [&](auto& all, size_t clip) { return std::span(all).subspan(first + clip * rows, rows); };
      for (size_t clip = 0; clip < kClips; ++clip)
        if (std::ranges::find(part(scales, clip), kFp16Infinity) != part(scales, clip).end())
          row_scales(job.weights, kClipFractions[clip], job.max_code, job.name);  // throws, naming the row

      std::array<double, kClips> totals;
      for (size_t clip = 0; clip < kClips; ++clip) totals[clip] = sum(part(squared, clip));
      auto best = static_cast<size_t>(std::ranges::min_element(totals) - totals.begin());
      auto hessian = static_cast<size_t>(std::ranges::find(wave.hessians, job.hessian_index) - wave.hessians.begin());
      GptqResult& result = results_[memory.jobs[i]];
      result.report = {kClipFractions[best], totals[best] / static_cast<double>(job.weights.rows * job.weights.cols),
                       sum(part(weighted, best)), memory.factors.damping(hessian),
                       work_.factors[job.hessian_index].dead_columns};
      auto kept = part(scales, best);
      result.codes = {
          job.max_code, std::vector<int8_t>(rows * static_cast<size_t>(job.weights.cols)), {kept.begin(), kept.end()}};
      // The solver is done with the weights: their memory is large enough.
      auto* codes = reinterpret_cast<int8_t*>(memory.weights[i]);
      restore_column_order(memory.solver[i], static_cast<int>(best), wave.padded_columns, codes, stream_);
      download(std::span(result.codes.codes), codes, stream_);
      first += kClips * rows;
    }
    stream_.wait();
  }

  const Work& work_;
  DeviceArray<std::byte> memory_;
  int64_t most_slots_;
  std::vector<GptqResult>& results_;
  CudaStream stream_, upload_stream_;
};

// Without weights there is nothing to launch: the CPU answers.
bool is_empty(const GptqJob& job) { return job.weights.rows == 0 || job.weights.cols == 0; }

Work check_work(std::span<const SymmetricMatrix* const> hessians, std::span<const GptqJob> jobs, double damping) {
  Work work{hessians, jobs, std::vector<std::vector<size_t>>(hessians.size()),
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
  return work;
}

}  // namespace

std::vector<GptqResult> solve_gptq_cuda(std::span<const SymmetricMatrix* const> hessians, std::span<const GptqJob> jobs,
                                        double damping, const CudaPlace& place, const OnGptqSolved& on_solved) {
  Work work = check_work(hessians, jobs, damping);
  std::vector<GptqResult> results(jobs.size());
  std::vector<int64_t> columns;
  for (size_t h = 0; h < hessians.size(); ++h) columns.push_back(work.jobs_of[h].empty() ? 0 : hessians[h]->size());
  WavePlan plan;
  {
    DeviceScope device(place.ordinal);
    plan = plan_waves(
        columns, solver_slots(), kWaveBytes,
        [&](const Wave& wave, int64_t most_slots) { return wave_bytes(work, wave, most_slots); },
        usable_memory(cuda_free_memory(place.ordinal), place.memory_limit_bytes));
  }
  solve_waves(
      plan, place.ordinal, [&] { return std::make_unique<Lane>(work, plan, results); },
      [&](const Wave& wave) {
        for (size_t job : jobs_of(work, wave))
          if (on_solved) on_solved(job, results[job]);
      });
  for (size_t j = 0; j < jobs.size(); ++j) {
    if (!is_empty(jobs[j])) continue;
    HessianFactor factor = factor_hessian(*hessians[jobs[j].hessian_index], damping, jobs[j].name);
    results[j] = solve_gptq(jobs[j].weights, factor, jobs[j].max_code, jobs[j].name);
    if (on_solved) on_solved(j, results[j]);
  }
  return results;
}

}  // namespace thimble
