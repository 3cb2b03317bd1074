// trellis_levels.h: what the weight coder needs to know of codes with a trellis (runtime/codes/trellis.h): the set that
// each belongs to, and its magnitude within it. Both are in the magnitude of its level, 2 * magnitude + set.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "packer/rans/scale_tables.h"
#include "runtime/codes/trellis.h"

namespace thimble {

// Larger levels are stored as this, plus their set: no table reaches so far.
constexpr uint32_t kLevelCap = 512;
static_assert(kLevelCap / 2 > max_reach(2));

struct TrellisLevels {
  std::vector<uint16_t> magnitudes;  // (R, K) |level|, at most kLevelCap + set
  uint32_t largest_code = 0;         // largest code_magnitude()
};

// codes: (rows, columns) row-major, beginning where the trellis does. bits: of the trellis, not 0.
template <typename Code>
TrellisLevels trellis_levels(std::span<const Code> codes, uint64_t rows, uint64_t columns, int bits);

}  // namespace thimble
