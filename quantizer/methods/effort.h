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
  int64_t calibration_sequences;  // of method slope; where codes are learned, those that statistics read
  int64_t cross_sequences;        // sequences that cross terms read, of those there are
  int64_t distill_steps, distill_batch;
  int64_t learn_steps, learn_batch;
};

// Where codes are learned and the model writes its text, it writes so many sequences in all; of text that is given,
// every step has its own.
constexpr int64_t kWrittenForLearning = 1024;

// By Effort. fast: what two processor cores do in minutes for a model of 30M parameters; default: a GPU in seconds.
inline constexpr std::array kEffortLevels = {
    EffortLevel{"fast", 64, 16, 24, 1, 0, 16},
    EffortLevel{"default", 64, std::numeric_limits<int64_t>::max(), 32, 4, 0, 16},
    EffortLevel{"best", 512, std::numeric_limits<int64_t>::max(), 64, 8, 200, 16},
};

constexpr const EffortLevel& level_of(Effort effort) { return kEffortLevels[static_cast<size_t>(effort)]; }

}  // namespace thimble
