// memory_plan.cpp: see memory_plan.h.
#include "runtime/base/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/count_text.h"
#include "runtime/base/error.h"

namespace thimble {

uint64_t MemoryPlan::bytes() const {
  uint64_t sum = 0;
  for (const MemoryUse& use : uses) sum += use.bytes;
  return sum;
}

std::string MemoryPlan::text() const {
  std::string text = fmt::format("{} takes {} B of device memory at most: {} of {} tokens at a time", step,
                                 count_text(bytes()), counted(batch, unit), unit_tokens);
  for (const MemoryUse& use : uses) text += fmt::format(", {} {} B", use.what, count_text(use.bytes));
  return text;
}

Json to_json(const MemoryPlan& plan) {
  Json uses = Json::object();
  for (const MemoryUse& use : plan.uses) uses[use.what] = use.bytes;
  return {{"step", plan.step},
          {"unit", fmt::format("{}s of {} tokens", plan.unit, plan.unit_tokens)},
          {"batch", plan.batch},
          {"bytes", plan.bytes()},
          {"uses", uses}};
}

MemoryPlan fit_memory_plan(const std::string& step, const std::string& unit, int64_t unit_tokens, int64_t most,
                           uint64_t usable_bytes, const std::function<std::vector<MemoryUse>(int64_t batch)>& uses_of) {
  auto planned = [&](int64_t batch) { return MemoryPlan{step, unit, unit_tokens, batch, uses_of(batch)}; };
  const MemoryPlan least = planned(1);
  if (least.bytes() > usable_bytes)
    throw DeviceError(fmt::format(
        "CUDA: out of device memory: {}; that is the smallest batch, and {} B may be used: what is free less a "
        "reserve, at most --device-memory",
        least.text(), count_text(usable_bytes)));
  // The answer is found by halving: `fits` does, what is above `beyond` does not.
  int64_t fits = 1, beyond = std::max<int64_t>(1, most) + 1;
  if (planned(beyond - 1).bytes() <= usable_bytes) return planned(beyond - 1);
  while (beyond - fits > 1) {
    const int64_t middle = fits + (beyond - fits) / 2;
    (planned(middle).bytes() <= usable_bytes ? fits : beyond) = middle;
  }
  return planned(fits);
}

uint64_t usable_memory(uint64_t free_bytes, uint64_t limit_bytes) {
  constexpr uint64_t kReserveBytes = uint64_t{128} << 20;
  uint64_t reserve = std::max(kReserveBytes, free_bytes / 20);
  uint64_t unreserved = free_bytes > reserve ? free_bytes - reserve : 0;
  return limit_bytes == kNoMemoryLimit ? unreserved : std::min(unreserved, limit_bytes);
}

}  // namespace thimble
