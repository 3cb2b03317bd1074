// cuda_gptq.cu: cuts the work into waves of Hessians with their layers that fit in the device's memory, and lets a few
// lanes, each with a stream of its own, work on them: one uploads while another factors and a third solves.
#include "gptq/cuda_gptq.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <mutex>
#include <numeric>
#include <optional>

#include "gptq/cholesky.cuh"
#include "gptq/f64_tile.cuh"
#include "gptq/gptq_solver.cuh"
#include "gptq/grid.h"
#include "gptq/hessian_factor.h"
#include "runtime/cuda_context.cuh"
#include "runtime/cuda_devices.h"
#include "runtime/cuda_numeric.cuh"
#include "runtime/error.h"
#include "runtime/memory_plan.h"
#include "runtime/parallel.h"

namespace thimble {
namespace {

constexpr int64_t kLanes = 3;
// A wave takes more Hessians until it needs this much memory; a large one comes alone, as do all where memory is
// scarce.
constexpr size_t kWaveBytes = size_t{256} << 20;
// Errors of the rows that are being solved; with fewer slots, fewer CTAs work at a time.
constexpr size_t kErrorBytes = size_t{1} << 30;
constexpr uint16_t kFp16Infinity = 0x7c00;

int64_t packed_elements(int64_t columns) { return columns * (columns + 1) / 2; }
int64_t padded_columns_of(int64_t columns) { return round_up(columns, kTile); }

// What all lanes read.
struct Work {
  std::span<const SymmetricMatrix* const> hessians;
  std::span<const GptqJob> jobs;
  std::vector<std::vector<size_t>> jobs_of;  // by Hessian
  std::vector<HessianFactor> factors;        // by Hessian; `upper` stays empty
};

// Hessians of equal padded size and their layers.
struct Wave {
  int64_t padded_columns = 0;
  std::vector<size_t> hessians;
  std::vector<size_t> jobs;
};

// Hands out pieces of one allocation. Without memory it only counts.
class Arena {
 public:
  explicit Arena(std::byte* base) : base_(base) {}
  template <typename T>
  T* take(int64_t count) {
    size_t offset = bytes_;
    bytes_ += static_cast<size_t>(round_up(count * static_cast<int64_t>(sizeof(T)), 256));
    return base_ ? reinterpret_cast<T*>(base_ + offset) : nullptr;
  }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  size_t bytes_ = 0;
};

// A wave's device memory and what the kernels are told about it.
struct WaveMemory {
  std::vector<CholeskyJob> cholesky;  // one per Hessian
  std::vector<double*> hessians;      // packed
  std::vector<int32_t*> orders;
  std::vector<SolverJob> solver;  // one per layer
  std::vector<float*> weights;
  std::vector<SolverItem> items;
  int64_t slots = 0;
  int64_t rows = 0;  // of all layers

  CholeskyJob* device_cholesky = nullptr;
  SolverJob* device_solver = nullptr;
  SolverItem* device_items = nullptr;
  int32_t* failed = nullptr;          // (Hessians)
  uint16_t* row_scales = nullptr;     // (kClips * rows), layer after layer, as are the next two
  double* squared_errors = nullptr;   // (kClips * rows)
  double* weighted_losses = nullptr;  // (kClips * rows)
  double* errors = nullptr;           // (slots, kTile, padded_columns)
};

void lay_out_hessians(const Work& work, const Wave& wave, Arena& arena, WaveMemory& memory) {
  auto count = static_cast<int64_t>(wave.hessians.size());
  int64_t padded = wave.padded_columns;
  memory.device_cholesky = arena.take<CholeskyJob>(count);
  memory.failed = arena.take<int32_t>(count);
  for (int64_t i = 0; i < count; ++i) {
    size_t hessian = wave.hessians[static_cast<size_t>(i)];
    int64_t columns = work.hessians[hessian]->size();
    const HessianFactor& factor = work.factors[hessian];
    memory.hessians.push_back(arena.take<double>(packed_elements(columns)));
    memory.orders.push_back(arena.take<int32_t>(columns));
    memory.cholesky.push_back({memory.hessians.back(), memory.orders.back(), static_cast<int32_t>(columns),
                               static_cast<int32_t>(factor.order.size() - factor.dead_columns.size()), 0,
                               arena.take<double>(padded * padded), arena.take<double>(padded * padded),
                               arena.take<double>(padded), memory.failed ? memory.failed + i : nullptr});
  }
}

// After lay_out_hessians().
void lay_out_layers(const Work& work, const Wave& wave, int64_t most_slots, Arena& arena, WaveMemory& memory) {
  int64_t padded = wave.padded_columns;
  for (size_t job : wave.jobs) memory.rows += work.jobs[job].weights.rows;
  memory.row_scales = arena.take<uint16_t>(kClips * memory.rows);
  memory.squared_errors = arena.take<double>(kClips * memory.rows);
  memory.weighted_losses = arena.take<double>(kClips * memory.rows);
  int64_t first = 0;  // of the layer's part of these
  for (size_t job : wave.jobs) {
    const GptqJob& layer = work.jobs[job];
    auto hessian = static_cast<size_t>(std::ranges::find(wave.hessians, layer.hessian_index) - wave.hessians.begin());
    const CholeskyJob& factored = memory.cholesky[hessian];
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
  WaveMemory memory;
  lay_out_hessians(work, wave, arena, memory);
  lay_out_layers(work, wave, most_slots, arena, memory);
  return memory;
}

size_t wave_bytes(const Work& work, const Wave& wave, int64_t most_slots) {
  Arena arena(nullptr);
  lay_out(work, wave, most_slots, arena);
  return arena.bytes();
}

// Large Hessians first: the end of the work is then made of small pieces.
std::vector<Wave> plan_waves(const Work& work, int64_t most_slots, size_t bytes_per_wave) {
  std::vector<size_t> by_size;
  for (size_t h = 0; h < work.hessians.size(); ++h)
    if (!work.jobs_of[h].empty()) by_size.push_back(h);
  std::ranges::stable_sort(by_size, std::greater{}, [&](size_t h) { return work.hessians[h]->size(); });
  std::vector<Wave> waves;
  for (size_t h : by_size) {
    Wave extended;
    int64_t padded = padded_columns_of(work.hessians[h]->size());
    bool fits = !waves.empty() && waves.back().padded_columns == padded;
    if (fits) extended = waves.back();
    extended.padded_columns = padded;
    extended.hessians.push_back(h);
    extended.jobs.insert(extended.jobs.end(), work.jobs_of[h].begin(), work.jobs_of[h].end());
    if (fits && wave_bytes(work, extended, most_slots) <= bytes_per_wave)
      waves.back() = std::move(extended);
    else
      waves.push_back({padded, {h}, work.jobs_of[h]});
  }
  return waves;
}

// How the work is cut for a device: its waves, and what a lane needs for the largest.
struct WavePlan {
  std::vector<Wave> waves;
  int64_t most_slots = 0;
  size_t lane_bytes = 0;
  int64_t lanes = 0;
};

WavePlan cut_into_waves(const Work& work, int64_t most_slots, size_t bytes_per_wave) {
  WavePlan plan{plan_waves(work, most_slots, bytes_per_wave), most_slots};
  for (const Wave& wave : plan.waves) plan.lane_bytes = std::max(plan.lane_bytes, wave_bytes(work, wave, most_slots));
  return plan;
}

// Where memory is scarce, waves of one Hessian, then ever fewer CTAs that work at a time; one lane at least.
WavePlan plan_for_memory(const Work& work, int64_t most_slots, uint64_t usable_bytes) {
  WavePlan plan = cut_into_waves(work, most_slots, kWaveBytes);
  if (plan.lane_bytes > usable_bytes) plan = cut_into_waves(work, most_slots, 0);
  while (plan.lane_bytes > usable_bytes && plan.most_slots > 1) plan = cut_into_waves(work, plan.most_slots / 2, 0);
  if (plan.lane_bytes > usable_bytes)
    throw DeviceError("CUDA: out of device memory: solving the largest layer alone needs " +
                      std::to_string(plan.lane_bytes) + " B, " + std::to_string(usable_bytes) + " B may be used");
  plan.lanes = std::min<int64_t>(kLanes, static_cast<int64_t>(plan.waves.size()));
  while (plan.lanes > 1 && static_cast<size_t>(plan.lanes) * plan.lane_bytes > usable_bytes) --plan.lanes;
  return plan;
}

template <typename T>
void upload(T* to, std::span<const T> from, cudaStream_t stream) {
  check_cuda(cudaMemcpyAsync(to, from.data(), from.size_bytes(), cudaMemcpyHostToDevice, stream));
}

template <typename T>
void download(std::span<T> to, const T* from, cudaStream_t stream) {
  check_cuda(cudaMemcpyAsync(to.data(), from, to.size_bytes(), cudaMemcpyDeviceToHost, stream));
}

// Serial, so that the order of the additions is the CPU's.
double sum(std::span<const double> values) { return std::accumulate(values.begin(), values.end(), 0.0); }

// Solves one wave after another in the same memory.
class Lane {
 public:
  Lane(const Work& work, double damping, size_t memory_bytes, int64_t most_slots)
      : work_(work), damping_(damping), memory_(static_cast<int64_t>(memory_bytes)), most_slots_(most_slots) {}

  // Fills the results of the wave's jobs.
  void solve(const Wave& wave, std::vector<GptqResult>& results) {
    Arena arena(memory_.data());
    WaveMemory memory = lay_out(work_, wave, most_slots_, arena);
    // Everything that these uploads read lives until the end of this function, which waits for the stream.
    std::vector<std::vector<int32_t>> orders;
    for (size_t h : wave.hessians) orders.emplace_back(work_.factors[h].order.begin(), work_.factors[h].order.end());
    for (size_t i = 0; i < wave.hessians.size(); ++i) {
      upload(memory.orders[i], std::span<const int32_t>(orders[i]), stream_);
      upload(memory.hessians[i], work_.hessians[wave.hessians[i]]->values(), stream_);
    }
    std::vector<double> dampings = factor(wave, memory);
    solve_layers(wave, memory);
    collect(wave, memory, dampings, results);
  }

 private:
  // Factors every Hessian, those that fail again with more damping. Returns the dampings.
  std::vector<double> factor(const Wave& wave, WaveMemory& memory) {
    std::vector<HessianFactor> trials(wave.hessians.size());
    for (HessianFactor& trial : trials) trial.damping = damping_;
    std::vector<size_t> pending(wave.hessians.size());
    std::iota(pending.begin(), pending.end(), size_t{0});
    for (int attempt = 1; !pending.empty(); ++attempt) {
      std::vector<CholeskyJob> batch;
      for (size_t i : pending) {
        memory.cholesky[i].added = trials[i].damping * work_.hessians[wave.hessians[i]]->mean_diagonal();
        batch.push_back(memory.cholesky[i]);
      }
      upload(memory.device_cholesky, std::span<const CholeskyJob>(batch), stream_);
      inverse_upper_cholesky(memory.device_cholesky, static_cast<int64_t>(batch.size()), wave.padded_columns, stream_);
      if (attempt == 1) upload_layers(wave, memory);  // while the device factors
      std::vector<int32_t> failed(wave.hessians.size());
      download(std::span(failed), memory.failed, stream_);
      stream_.wait();
      std::erase_if(pending, [&](size_t i) { return failed[i] == 0; });
      for (size_t i : pending)
        raise_damping(trials[i], attempt, work_.jobs[work_.jobs_of[wave.hessians[i]].front()].name);
    }
    std::vector<double> dampings;
    for (const HessianFactor& trial : trials) dampings.push_back(trial.damping);
    return dampings;
  }

  void upload_layers(const Wave& wave, const WaveMemory& memory) {
    upload(memory.device_solver, std::span<const SolverJob>(memory.solver), upload_stream_);
    upload(memory.device_items, std::span<const SolverItem>(memory.items), upload_stream_);
    for (size_t i = 0; i < wave.jobs.size(); ++i) {
      ConstMatrixView weights = work_.jobs[wave.jobs[i]].weights;
      size_t row_bytes = static_cast<size_t>(weights.cols) * sizeof(float);
      check_cuda(cudaMemcpy2DAsync(memory.weights[i], row_bytes, weights.data,
                                   static_cast<size_t>(weights.stride) * sizeof(float), row_bytes,
                                   static_cast<size_t>(weights.rows), cudaMemcpyHostToDevice, upload_stream_));
    }
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
  void collect(const Wave& wave, const WaveMemory& memory, const std::vector<double>& dampings,
               std::vector<GptqResult>& results) {
    auto count = static_cast<size_t>(kClips * memory.rows);
    std::vector<uint16_t> scales(count);
    std::vector<double> squared(count), weighted(count);
    download(std::span(scales), memory.row_scales, stream_);
    download(std::span(squared), memory.squared_errors, stream_);
    download(std::span(weighted), memory.weighted_losses, stream_);
    stream_.wait();
    size_t first = 0;
    for (size_t i = 0; i < wave.jobs.size(); ++i) {
      const GptqJob& job = work_.jobs[wave.jobs[i]];
      auto rows = static_cast<size_t>(job.weights.rows);
      auto part = [&](auto& all, size_t clip) { return std::span(all).subspan(first + clip * rows, rows); };
      for (size_t clip = 0; clip < kClips; ++clip)
        if (std::ranges::find(part(scales, clip), kFp16Infinity) != part(scales, clip).end())
          row_scales(job.weights, kClipFractions[clip], job.max_code, job.name);  // throws, naming the row

      std::array<double, kClips> totals;
      for (size_t clip = 0; clip < kClips; ++clip) totals[clip] = sum(part(squared, clip));
      auto best = static_cast<size_t>(std::ranges::min_element(totals) - totals.begin());
      auto hessian = static_cast<size_t>(std::ranges::find(wave.hessians, job.hessian_index) - wave.hessians.begin());
      GptqResult& result = results[wave.jobs[i]];
      result.report = {kClipFractions[best], totals[best] / static_cast<double>(job.weights.rows * job.weights.cols),
                       sum(part(weighted, best)), dampings[hessian], work_.factors[job.hessian_index].dead_columns};
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
  double damping_;
  DeviceArray<std::byte> memory_;
  int64_t most_slots_;
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
  WavePlan plan;
  {
    DeviceScope device(place.ordinal);
    plan =
        plan_for_memory(work, solver_slots(), usable_memory(cuda_free_memory(place.ordinal), place.memory_limit_bytes));
  }
  const std::vector<Wave>& waves = plan.waves;
  std::atomic<size_t> next = 0;
  std::mutex callback;
  parallel_for(plan.lanes, [&](int64_t) {
    DeviceScope device(place.ordinal);
    std::optional<Lane> lane;  // with memory only when there is still work for it
    for (size_t w = next++; w < waves.size(); w = next++) {
      if (!lane) lane.emplace(work, damping, plan.lane_bytes, plan.most_slots);
      try {
        lane->solve(waves[w], results);
      } catch (...) {
        next = waves.size();
        throw;
      }
      std::lock_guard lock(callback);
      for (size_t job : waves[w].jobs)
        if (on_solved) on_solved(job, results[job]);
    }
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
