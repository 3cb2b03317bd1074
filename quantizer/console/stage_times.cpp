// stage_times.cpp: see stage_times.h.
#include "quantizer/console/stage_times.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "runtime/base/memory_plan.h"

namespace thimble {
namespace {

// VmHWM of /proc/self/status, else what the system counts since the process began. Linux counts both in KiB.
uint64_t resident_peak_bytes() {
  constexpr std::string_view kName = "VmHWM:";
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(kName)) return std::stoull(line.substr(kName.size())) * 1024;
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

// From now on, what is resident now is the peak.
bool count_anew() { return static_cast<bool>(std::ofstream("/proc/self/clear_refs") << "5" << std::flush); }

// Of a stage, to be worth that.
constexpr double kLongSeconds = 1;

}  // namespace

void StageTimes::look() {
  const uint64_t peak = resident_peak_bytes();
  process_peak_ = std::max(process_peak_, peak);
  for (uint64_t& stage : open_) stage = std::max(stage, peak);
  counts_anew_ = count_anew() && counts_anew_;
}

void StageTimes::end(const std::string& stage, double seconds) {
  look();
  auto found = std::ranges::find(stages_, stage, &Stage::name);
  if (found == stages_.end()) found = stages_.insert(stages_.end(), Stage{stage, 0, 0});
  found->seconds += seconds;
  found->peak_bytes = std::max(found->peak_bytes, open_.back());
  open_.pop_back();
  if (seconds > kLongSeconds) release_free_memory();
}

uint64_t StageTimes::peak_memory_bytes() {
  look();
  return process_peak_;
}

Json StageTimes::to_json() const {
  Json json = {{"seconds", Json::object()}, {"stage_peak_memory_bytes", Json::object()}};
  for (const Stage& stage : stages_) {
    json["seconds"][stage.name] = stage.seconds;
    json["stage_peak_memory_bytes"][stage.name] = stage.peak_bytes;
  }
  return json;
}

}  // namespace thimble
