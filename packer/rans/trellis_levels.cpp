// trellis_levels.cpp: walks down all columns at once, row by row.
#include "packer/rans/trellis_levels.h"

#include <algorithm>

namespace thimble {

template <typename Code>
TrellisLevels trellis_levels(std::span<const Code> codes, uint64_t rows, uint64_t columns, int bits) {
  const Trellis trellis(bits);
  TrellisLevels levels{std::vector<uint16_t>(codes.size()), 0};
  std::vector<uint8_t> states(columns);
  uint32_t largest = 0;
  for (uint64_t r = 0; r < rows; ++r) {
    if (r % static_cast<uint64_t>(kTrellisRows) == 0) std::ranges::fill(states, uint8_t{0});
    const Code* row = &codes[r * columns];
    uint16_t* out = &levels.magnitudes[r * columns];
    for (uint64_t k = 0; k < columns; ++k) {
      const auto set = static_cast<uint32_t>(Trellis::set(states[k]));
      const uint32_t magnitude = code_magnitude(row[k], static_cast<int>(set));
      largest = std::max(largest, magnitude);
      out[k] = static_cast<uint16_t>(2 * std::min(magnitude, kLevelCap / 2) + set);
      states[k] = static_cast<uint8_t>(trellis.next(states[k], static_cast<int32_t>(row[k]) & 1));
    }
  }
  levels.largest_code = largest;
  return levels;
}

template TrellisLevels trellis_levels(std::span<const int8_t>, uint64_t, uint64_t, int);
template TrellisLevels trellis_levels(std::span<const int32_t>, uint64_t, uint64_t, int);

}  // namespace thimble
