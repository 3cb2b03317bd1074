// device_waves.cuh: cuts the solving of many layers into waves that fit in the device's memory, and lets a few lanes,
// each with streams of its own, work on them: one uploads while another factors and a third solves.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "gptq/factor/hessian_factor.cuh"
#include "runtime/base/parallel.h"
#include "runtime/cuda/kernels/cuda_devices.h"

namespace thimble {

// Hessians of equal padded size, with all layers that they belong to.
struct Wave {
  int64_t padded_columns = 0;
  std::vector<size_t> hessians;
};

// How the work is cut for a device: its waves, and what a lane needs for the largest.
struct WavePlan {
  std::vector<Wave> waves;
  int64_t most_slots = 0;  // CTAs that work at a time
  size_t lane_bytes = 0;
  int64_t lanes = 0;
};

// Memory that a wave needs when so many CTAs work at a time.
using WaveBytes = std::function<size_t(const Wave& wave, int64_t most_slots)>;

// Waves take more Hessians until they need `aim_bytes`; a large one comes alone. Where memory is scarce, waves of one
// Hessian, then ever fewer CTAs that work at a time; one lane at least, else a DeviceError. On the current device.
WavePlan plan_waves(std::span<const FactorItem> hessians, int64_t most_slots, size_t aim_bytes, const WaveBytes& bytes,
                    const CudaPlace& place);

// CTAs of a kernel that the current device can work on at a time.
template <typename Kernel>
int64_t resident_ctas(Kernel kernel, int threads, int shared_bytes) {
  int per_processor = 0;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_processor, kernel, threads, shared_bytes));
  return static_cast<int64_t>(multiprocessors()) * per_processor;
}

// Factors the Hessians of `jobs` and solves what belongs to them, wave by wave. Layers is a method's:
//   Layers(work, wave, factors, most_slots, arena)   takes a wave's memory from the arena, which may only count
//   void upload(stream)                              enqueues the uploads that need no factor
//   void solve(stream)                               solves, once there are the factors, and hands on the results
//   static int64_t most_slots()                      CTAs that work at a time where memory is plentiful
// called from the threads of several lanes.
template <typename Layers, typename Work>
void solve_in_waves(const Work& work, std::span<const FactorJob> jobs, size_t aim_bytes, const CudaPlace& place) {
  const std::vector<FactorItem> hessians = factor_items(jobs);
  auto factors_of = [&](const Wave& wave, Arena& arena) {
    std::vector<const FactorItem*> items;
    for (size_t h : wave.hessians) items.push_back(&hessians[h]);
    return FactorBatch(std::move(items), wave.padded_columns, arena);
  };
  auto bytes = [&](const Wave& wave, int64_t most_slots) {
    Arena arena(nullptr);
    const FactorBatch factors = factors_of(wave, arena);
    const Layers layers(work, wave, factors, most_slots, arena);
    return arena.bytes();
  };
  DeviceScope scope(place.ordinal);
  const WavePlan plan = plan_waves(hessians, Layers::most_slots(), aim_bytes, bytes, place);
  std::atomic<size_t> next = 0;
  parallel_for(plan.lanes, [&](int64_t) {
    if (next >= plan.waves.size()) return;
    DeviceScope device(place.ordinal);
    const DeviceArray<std::byte> memory(static_cast<int64_t>(plan.lane_bytes));
    const CudaStream stream, upload_stream;
    try {
      for (size_t w = next++; w < plan.waves.size(); w = next++) {
        Arena arena(memory.data());
        FactorBatch factors = factors_of(plan.waves[w], arena);
        Layers layers(work, plan.waves[w], factors, plan.most_slots, arena);
        factors.factor(stream, [&] {
          layers.upload(upload_stream);
          upload_stream.wait();
        });
        layers.solve(stream);
      }
    } catch (...) {
      next = plan.waves.size();
      throw;
    }
  });
}

}  // namespace thimble
