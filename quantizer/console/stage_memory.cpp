// stage_memory.cpp: see stage_memory.h.
#include "quantizer/console/stage_memory.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string_view>

namespace thimble {
namespace {

// VmHWM of /proc/self/status, else what the system counts since the process began.
uint64_t resident_peak_bytes() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto counted = static_cast<uint64_t>(usage.ru_maxrss) * 1024;  // Linux counts in KiB
  const int file = ::open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  if (file < 0) return counted;
  char buffer[8192];
  const ssize_t size = ::read(file, buffer, sizeof(buffer));
  ::close(file);
  const std::string_view status(buffer, static_cast<size_t>(std::max<ssize_t>(size, 0))), name = "\nVmHWM:";
  size_t at = status.find(name);
  if (at == std::string_view::npos) return counted;
  at = std::min(status.find_first_not_of(" \t", at + name.size()), status.size());
  uint64_t kib = 0;
  auto [stop, error] = std::from_chars(status.data() + at, status.data() + status.size(), kib);
  return error == std::errc() ? kib * 1024 : counted;
}

// From now on, what is resident now is the peak.
bool count_anew() {
  const int file = ::open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool is_written = ::write(file, "5", 1) == 1;
  ::close(file);
  return is_written;
}

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
