// effort.h: how much work a run puts in, where no option says a count: the same on every device, so that the artifact
// is too.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

namespace thimble {

enum class Effort { kFast, kDefault, kBest };

// Sequences of at most kEffortLength tokens.
struct EffortLevel {
  const char* name;
  int64_t calibration_sequences;  // of method slope; where codes are learned, those that statistics read
  int64_t cross_sequences;        // sequences that cross terms read, of those there are
  int64_t distill_steps, distill_batch;
  int64_t learn_steps, given_learn_steps, learn_batch;  // of text that the model writes, and of text that is given
  int64_t most_learned;                                 // parameters of the largest model whose codes are learned
  // Where codes are learned and the model writes its text, as many sequences in all; of text that is given, every step
  // has its own.
  int64_t written_sequences;
};

constexpr int64_t kEffortLength = 1024, kAllSequences = std::numeric_limits<int64_t>::max();
constexpr int64_t kAnySize = std::numeric_limits<int64_t>::max();
// Parameters of the largest model whose codes some hundred steps move as they should. Of larger ones they move few, and
// gains of rows, learned with them, do more.
constexpr int64_t kFreeCodes = 50'000'000;

// By Effort. fast: what two processor cores do in minutes for a model of 30M parameters; default: a GPU in seconds;
// best: a GPU in a minute or two.
inline constexpr std::array kEffortLevels = {
    EffortLevel{"fast", 64, 32, 24, 2, 0, 0, 32, 0, 0},
    EffortLevel{"default", 128, kAllSequences, 32, 8, 32, 0, 32, kFreeCodes, 512},
    EffortLevel{"best", 1024, kAllSequences, 64, 16, 200, 200, 32, kAnySize, 2048},
};

constexpr const EffortLevel& level_of(Effort effort) { return kEffortLevels[static_cast<size_t>(effort)]; }

// With sequences of this length: of longer ones as many as have the same tokens.
constexpr EffortLevel level_at(Effort effort, int64_t length) {
  EffortLevel level = level_of(effort);
  for (int64_t* count : {&level.calibration_sequences, &level.cross_sequences, &level.distill_batch, &level.learn_batch,
                         &level.written_sequences})
    if (*count != kAllSequences && length > kEffortLength)
      *count = std::max<int64_t>(1, *count * kEffortLength / length);
  return level;
}

}  // namespace thimble
