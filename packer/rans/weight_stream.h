// weight_stream.h: what encoder and decoder of weights both know of a stream: its head, and which table codes an
// element.
#pragma once

#include <algorithm>
#include <vector>

#include "packer/rans/lane_rans.h"
#include "packer/rans/scale_fit.h"
#include "packer/rans/weight_blocks.h"
#include "packer/rans/weight_coder.h"

namespace thimble {

constexpr int kShapeBits = 4;  // of the first byte; the others hold the bits of the trellis

// Of codes with a trellis of this many bits.
constexpr uint32_t most_magnitude_of(int trellis_bits) { return kMaxCodeMagnitude - (trellis_bits == 0 ? 0 : 1); }

// Of the values of rows and columns.
inline ScaleTables axis_tables() { return make_scale_tables(0, max_reach(1)); }

// Classes of the codes of rows, then columns.
inline std::vector<uint8_t> axis_classes(const ScaleFit& fit) {
  std::vector<uint8_t> classes(fit.rows.values.size(), static_cast<uint8_t>(fit.rows.spread));
  classes.resize(classes.size() + fit.columns.values.size(), static_cast<uint8_t>(fit.columns.spread));
  return classes;
}

// Their range.
inline ClassRange axis_range(const ScaleFit& fit) {
  const int rows = fit.rows.spread, columns = fit.columns.spread;
  return {static_cast<uint32_t>(std::min(rows, columns)), static_cast<uint32_t>(std::max(rows, columns))};
}

// Of each element of a block.
inline void fill_classes(const ScaleFit& fit, const WeightBlock& block, std::vector<uint8_t>& classes) {
  const uint64_t columns = fit.columns.values.size();
  classes.resize(block.elements());
  auto next = classes.begin();
  for (uint64_t i = 0; i < block.rows; ++i) {
    const uint64_t begin = block.begin + i * block.stride;
    for (uint64_t j = 0; j < block.width;) {  // to the end of a row of the matrix, or of the run
      const int row = fit.rows.values[(begin + j) / columns];
      const uint64_t k = (begin + j) % columns, count = std::min(block.width - j, columns - k);
      next = std::transform(&fit.columns.values[k], &fit.columns.values[k] + count, next,
                            [row](int8_t column) { return static_cast<uint8_t>(class_of(row, column)); });
      j += count;
    }
  }
}

// Those that elements of blocks may have.
inline ClassRange class_range(const ScaleFit& fit) {
  const auto [least_row, most_row] = std::ranges::minmax(fit.rows.values);
  const auto [least_column, most_column] = std::ranges::minmax(fit.columns.values);
  return {static_cast<uint32_t>(class_of(least_row, least_column)),
          static_cast<uint32_t>(class_of(most_row, most_column))};
}

// What comes before the blocks, with the values of rows and columns, whose codes are the first block.
struct StreamHead {
  ScaleFit fit;
  int escape_order = 0;
  int lanes_log2 = 0;
  uint32_t max_magnitude = 0;
};

}  // namespace thimble
