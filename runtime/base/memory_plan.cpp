// memory_plan.cpp: see memory_plan.h.
#include "runtime/base/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/count_text.h"

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

uint64_t usable_memory(uint64_t free_bytes, uint64_t limit_bytes) {
  constexpr uint64_t kReserveBytes = uint64_t{128} << 20;
  uint64_t reserve = std::max(kReserveBytes, free_bytes / 20);
  uint64_t unreserved = free_bytes > reserve ? free_bytes - reserve : 0;
  return limit_bytes == kNoMemoryLimit ? unreserved : std::min(unreserved, limit_bytes);
}

}  // namespace thimble
