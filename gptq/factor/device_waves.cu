// device_waves.cu: see device_waves.cuh.
#include "gptq/factor/device_waves.cuh"

#include <algorithm>
#include <numeric>
#include <string>

namespace thimble {
namespace {

constexpr int64_t kLanes = 4;

// Large Hessians first: the end of the work is then made of small pieces.
WavePlan cut(std::span<const FactorItem> hessians, int64_t most_slots, size_t aim_bytes, const WaveBytes& bytes) {
  std::vector<size_t> by_size(hessians.size());
  std::iota(by_size.begin(), by_size.end(), size_t{0});
  std::ranges::stable_sort(by_size, std::greater{}, [&](size_t h) { return hessians[h].job->hessian->size(); });
  WavePlan plan;
  plan.most_slots = most_slots;
  for (size_t h : by_size) {
    const int64_t padded = round_up(hessians[h].job->hessian->size(), kTile);
    if (!plan.waves.empty() && plan.waves.back().padded_columns == padded) {
      Wave extended = plan.waves.back();
      extended.hessians.push_back(h);
      if (bytes(extended, most_slots) <= aim_bytes) {
        plan.waves.back() = std::move(extended);
        continue;
      }
    }
    plan.waves.push_back({padded, {h}});
  }
  for (const Wave& wave : plan.waves) plan.lane_bytes = std::max(plan.lane_bytes, bytes(wave, most_slots));
  return plan;
}

}  // namespace

WavePlan plan_waves(std::span<const FactorItem> hessians, int64_t most_slots, size_t aim_bytes, const WaveBytes& bytes,
                    const CudaPlace& place) {
  const uint64_t usable = usable_memory(place);
  WavePlan plan = cut(hessians, most_slots, aim_bytes, bytes);
  if (plan.lane_bytes > usable) plan = cut(hessians, most_slots, 0, bytes);
  while (plan.lane_bytes > usable && plan.most_slots > 1) plan = cut(hessians, plan.most_slots / 2, 0, bytes);
  if (plan.lane_bytes > usable)
    throw DeviceError("CUDA: out of device memory: solving the largest layer alone needs " +
                      std::to_string(plan.lane_bytes) + " B, " + std::to_string(usable) + " B may be used");
  plan.lanes = std::min<int64_t>(kLanes, static_cast<int64_t>(plan.waves.size()));
  while (plan.lanes > 1 && static_cast<size_t>(plan.lanes) * plan.lane_bytes > usable) --plan.lanes;
  return plan;
}

}  // namespace thimble
