// stage_memory.cpp: see stage_memory.h.
#include "quantizer/console/stage_memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <string>

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

}  // namespace

void StageMemory::look() {
  const uint64_t peak = resident_peak_bytes();
  process_ = std::max(process_, peak);
  for (uint64_t& stage : open_) stage = std::max(stage, peak);
  counts_anew_ = count_anew() && counts_anew_;
}

void StageMemory::begin() {
  look();
  open_.push_back(0);
}

uint64_t StageMemory::end() {
  look();
  const uint64_t peak = open_.back();
  open_.pop_back();
  return peak;
}

uint64_t StageMemory::peak_bytes() {
  look();
  return process_;
}

}  // namespace thimble
