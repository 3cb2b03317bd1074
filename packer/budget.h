// budget.h: does an artifact, together with the code that runs it, fit in a byte limit? All sizes are decimal bytes.
#pragma once

#include <cstdint>
#include <limits>

namespace thimble {

struct BudgetReport {
  uint64_t artifact_bytes = 0;
  uint64_t code_bytes = 0;
  uint64_t total_bytes = 0;  // saturates
  uint64_t limit_bytes = 0;
  bool fits = false;  // total_bytes <= limit_bytes
};

inline BudgetReport check_budget(uint64_t artifact_bytes, uint64_t code_bytes, uint64_t limit_bytes) {
  BudgetReport report{artifact_bytes, code_bytes, 0, limit_bytes};
  if (__builtin_add_overflow(artifact_bytes, code_bytes, &report.total_bytes))
    report.total_bytes = std::numeric_limits<uint64_t>::max();
  report.fits = report.total_bytes <= limit_bytes;
  return report;
}

}  // namespace thimble
