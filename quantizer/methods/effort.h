// effort.h: how much work a run puts in, where no option says a count: the same on every device, so that the artifact
// is too.
#pragma once

#include <array>
#include <cstdint>
#include <limits>

namespace thimble {

enum class Effort { kFast, kDefault, kBest };

struct EffortLevel {
  const char* name;
  int64_t calibration_sequences;  // of method slope
  int64_t cross_sequences;        // sequences that cross terms read, of those there are
  int64_t statistics_sequences;   // and what they and statistics read where codes are learned from all
  int64_t distill_steps, distill_batch;
};

// By Effort. fast: what two processor cores do in minutes for a model of 30M parameters; default: a GPU in seconds.
inline constexpr std::array kEffortLevels = {
    EffortLevel{"fast", 128, 32, 128, 24, 2},
    EffortLevel{"default", 128, std::numeric_limits<int64_t>::max(), 512, 32, 8},
    EffortLevel{"best", 256, std::numeric_limits<int64_t>::max(), 512, 64, 16},
};

constexpr const EffortLevel& level_of(Effort effort) { return kEffortLevels[static_cast<size_t>(effort)]; }

}  // namespace thimble
