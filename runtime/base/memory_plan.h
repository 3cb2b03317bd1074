// memory_plan.h: how much memory of a device, or of the host, a run takes at its peak, and how many windows or
// sequences at a time that leaves room for. Known, and printed, before anything is allocated. Not counted: the driver's
// own context and kernels, which are no part of the usable bytes either.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/json_fwd.h"

namespace thimble {

constexpr uint64_t kNoMemoryLimit = UINT64_MAX;

struct MemoryUse {
  std::string what;  // "weights"
  uint64_t bytes = 0;
};

// Of one device, or of the host where it is the CPU that computes.
struct MemoryPlan {
  std::string step;             // "scoring"
  std::string unit;             // "window"
  int64_t unit_tokens = 0;      // of each
  int64_t batch = 0;            // units at a time
  std::vector<MemoryUse> uses;  // with that batch
  bool is_host = false;

  uint64_t bytes() const;
  // "scoring: 880,803,840 B on each device at most: weights 60,000,000 B, ...; 32 windows of 2048 tokens at a time"
  std::string text() const;
};

Json to_json(const MemoryPlan& plan);

// The largest batch up to `most` whose uses, which grow with the batch, fit. A DeviceError that names what is needed at
// least, and what is usable, when not even a batch of one fits.
MemoryPlan fit_memory_plan(const std::string& step, const std::string& unit, int64_t unit_tokens, int64_t most,
                           uint64_t usable_bytes, const std::function<std::vector<MemoryUse>(int64_t batch)>& uses_of);

// What of `free_bytes` may be planned with: all but a reserve for the allocator's and the driver's own needs, and at
// most `limit_bytes` (kNoMemoryLimit: no other bound).
uint64_t usable_memory(uint64_t free_bytes, uint64_t limit_bytes);

// What of `usable_bytes` is left for what is in flight beside a model that takes `model_bytes`: an eighth at least, for
// something must be.
constexpr uint64_t working_memory(uint64_t usable_bytes, uint64_t model_bytes) {
  const uint64_t least = usable_bytes / 8;
  return usable_bytes > model_bytes + least ? usable_bytes - model_bytes : least;
}

// What a process may take of the host's memory: all of the machine, or what its control group allows.
uint64_t host_memory_bytes();
// Gives pages that the heap has left free back to the system. glibc keeps blocks of up to 32 MiB once they are freed:
// what a stage took at its peak would stay for all that follow.
void release_free_memory();
// The least limit of the control groups (version 1 or 2) that `groups`, contents of /proc/self/cgroup, names below
// `root`, the folder /sys/fs/cgroup; kNoMemoryLimit where there is none.
uint64_t control_group_limit(const std::string& groups, const std::string& root);

}  // namespace thimble
