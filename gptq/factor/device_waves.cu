// device_waves.cu: see device_waves.cuh.
#include <algorithm>
#include <numeric>
#include <string>

#include "gptq/factor/device_waves.cuh"
#include "gptq/factor/factor_batch.cuh"

namespace thimble {
namespace {

constexpr int64_t kLanes = 3;

// Large Hessians first: the end of the work is then made of small pieces.
WavePlan cut(std::span<const int64_t> columns, int64_t most_slots, size_t aim_bytes, const WaveBytes& bytes) {
  std::vector<size_t> by_size;
  for (size_t h = 0; h < columns.size(); ++h)
    if (columns[h] > 0) by_size.push_back(h);
  std::ranges::stable_sort(by_size, std::greater{}, [&](size_t h) { return columns[h]; });
  WavePlan plan;
  plan.most_slots = most_slots;
  for (size_t h : by_size) {
    const int64_t padded = padded_columns_of(columns[h]);
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

WavePlan plan_waves(std::span<const int64_t> columns, int64_t most_slots, size_t aim_bytes, const WaveBytes& bytes,
                    uint64_t usable_bytes) {
  WavePlan plan = cut(columns, most_slots, aim_bytes, bytes);
  if (plan.lane_bytes > usable_bytes) plan = cut(columns, most_slots, 0, bytes);
  while (plan.lane_bytes > usable_bytes && plan.most_slots > 1) plan = cut(columns, plan.most_slots / 2, 0, bytes);
  if (plan.lane_bytes > usable_bytes)
    throw DeviceError("CUDA: out of device memory: solving the largest layer alone needs " +
                      std::to_string(plan.lane_bytes) + " B, " + std::to_string(usable_bytes) + " B may be used");
  plan.lanes = std::min<int64_t>(kLanes, static_cast<int64_t>(plan.waves.size()));
  while (plan.lanes > 1 && static_cast<size_t>(plan.lanes) * plan.lane_bytes > usable_bytes) --plan.lanes;
  return plan;
}

}  // namespace thimble
