// whole_stream.h: all codes of a stream of the weight coder at once, for tests.
#pragma once

#include <algorithm>
#include <vector>

#include "packer/rans/weight_coder.h"

namespace thimble {

inline std::vector<int32_t> decode_all(Bytes stored, uint64_t rows, uint64_t columns, const std::string& where,
                                       int trellis_bits = 0, uint32_t most_magnitude = kMaxCodeMagnitude) {
  std::vector<int32_t> all(rows * columns);
  const auto take = [&](const WeightBlock& block, std::span<const int32_t> codes) {
    for (uint64_t r = 0; r < block.rows; ++r)
      std::ranges::copy(codes.subspan(r * block.width, block.width), &all[block.begin + r * block.stride]);
  };
  decode_weights(take, stored, rows, columns, where, trellis_bits, most_magnitude);
  return all;
}

}  // namespace thimble
