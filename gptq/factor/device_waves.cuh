// device_waves.cuh: cuts the solving of many layers into waves that fit in the device's memory, and lets a few lanes,
// each with a stream of its own, work on them: one uploads while another factors and a third solves.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include "runtime/base/parallel.h"
#include "runtime/cuda/kernels/cuda_context.cuh"

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

// `columns`: of each Hessian, 0 where nothing is to be solved. Waves take more Hessians until they need `aim_bytes`; a
// large one comes alone. Where memory is scarce, waves of one Hessian, then ever fewer CTAs that work at a time; one
// lane at least, else a DeviceError.
WavePlan plan_waves(std::span<const int64_t> columns, int64_t most_slots, size_t aim_bytes, const WaveBytes& bytes,
                    uint64_t usable_bytes);

// lane->solve(wave) for every wave, from up to plan.lanes threads, each with its own lane from make_lane(), which is
// called when there is work for it; then on_solved(wave), one at a time.
template <typename MakeLane, typename OnSolved>
void solve_waves(const WavePlan& plan, int ordinal, const MakeLane& make_lane, const OnSolved& on_solved) {
  std::atomic<size_t> next = 0;
  std::mutex callback;
  parallel_for(plan.lanes, [&](int64_t) {
    DeviceScope device(ordinal);
    decltype(make_lane()) lane;
    for (size_t w = next++; w < plan.waves.size(); w = next++) {
      if (!lane) lane = make_lane();
      try {
        lane->solve(plan.waves[w]);
      } catch (...) {
        next = plan.waves.size();
        throw;
      }
      std::lock_guard lock(callback);
      on_solved(plan.waves[w]);
    }
  });
}

}  // namespace thimble
