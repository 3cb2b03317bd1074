// effort.cpp: the table of levels.
#include "quantizer/methods/effort.h"

#include <array>
#include <cassert>
#include <limits>

namespace thimble {
namespace {

constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

// fast: what two processor cores do in minutes for a model of 30M parameters; default: a GPU in seconds.
constexpr std::array kLevels = {
    EffortLevel{"fast", 128, 32, 24, 2},
    EffortLevel{"default", 128, kAll, 32, 8},
    EffortLevel{"best", 256, kAll, 64, 16},
};

}  // namespace

const EffortLevel& level_of(Effort effort) { return kLevels[static_cast<size_t>(effort)]; }

std::vector<std::string> effort_names() {
  std::vector<std::string> names;
  for (const EffortLevel& level : kLevels) names.emplace_back(level.name);
  return names;
}

Effort parse_effort(const std::string& name) {
  for (size_t i = 0; i < kLevels.size(); ++i)
    if (name == kLevels[i].name) return static_cast<Effort>(i);
  assert(false);
  return Effort::kDefault;
}

}  // namespace thimble
