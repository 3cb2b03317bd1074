// memory_plan.cpp: see memory_plan.h.
#include "runtime/base/memory_plan.h"

#include <fmt/format.h>

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "runtime/base/count_text.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace thimble {

uint64_t MemoryPlan::bytes() const {
  uint64_t sum = 0;
  for (const MemoryUse& use : uses) sum += use.bytes;
  return sum;
}

std::string MemoryPlan::text() const {
  std::string text = fmt::format("{} takes {} B of {} at most: {}", step, count_text(bytes()),
                                 is_host ? "memory" : "device memory", counted(batch, unit));
  if (unit_tokens > 0) text += fmt::format(" of {} tokens", unit_tokens);
  text += " at a time";
  for (const MemoryUse& use : uses) text += fmt::format(", {} {} B", use.what, count_text(use.bytes));
  return text;
}

namespace {

std::string unit_tokens_text(const MemoryPlan& plan) {
  return plan.unit_tokens > 0 ? fmt::format("{}s of {} tokens", plan.unit, plan.unit_tokens) : plan.unit + "s";
}

// The number in a file, which may say "max" instead; kNoMemoryLimit where there is none.
uint64_t number_in(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  return file >> number ? number : kNoMemoryLimit;
}

}  // namespace

uint64_t control_group_limit(const std::string& groups, const std::string& root) {
  uint64_t least = kNoMemoryLimit;
  std::istringstream lines(groups);
  for (std::string line; std::getline(lines, line);) {  // "0::/user.slice", or "9:cpu,memory:/docker/1"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool is_unified = controllers == ",,";
    if (!is_unified && controllers.find(",memory,") == std::string::npos) continue;
    // A limit holds for all groups below. In a container the path may be the host's, and only its end is there.
    const std::string folder = is_unified ? root : root + "/memory";
    const char* limit = is_unified ? "/memory.max" : "/memory.limit_in_bytes";
    for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
      while (path.ends_with('/')) path.pop_back();
      least = std::min(least, number_in(folder + path + limit));
      if (path.empty() || path.rfind('/') == std::string::npos) break;
    }
  }
  return least;
}

uint64_t host_memory_bytes() {
  const auto pages = static_cast<uint64_t>(std::max<long>(0, ::sysconf(_SC_PHYS_PAGES)));
  const auto page_bytes = static_cast<uint64_t>(std::max<long>(0, ::sysconf(_SC_PAGESIZE)));
  std::ostringstream groups;
  groups << std::ifstream("/proc/self/cgroup").rdbuf();
  return std::min(pages * page_bytes, control_group_limit(groups.str(), "/sys/fs/cgroup"));
}

void release_free_memory() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

Json to_json(const MemoryPlan& plan) {
  Json uses = Json::object();
  for (const MemoryUse& use : plan.uses) uses[use.what] = use.bytes;
  return {{"step", plan.step},
          {"unit", unit_tokens_text(plan)},
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
