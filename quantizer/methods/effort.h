// effort.h: how much work a run puts in, where no option says a count: the same on every device, so that the artifact
// is too.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace thimble {

enum class Effort { kFast, kDefault, kBest };

struct EffortLevel {
  const char* name;
  int64_t calibration_sequences;  // of method slope
  int64_t cross_sequences;        // sequences that cross terms read, of those there are
  int64_t distill_steps, distill_batch;
};

const EffortLevel& level_of(Effort effort);

// Of all levels, least work first.
std::vector<std::string> effort_names();
// One of these.
Effort parse_effort(const std::string& name);

}  // namespace thimble
