// whole_stream.h: all codes of a stream of the weight coder at once, for tests.
#pragma once

#include <vector>

#include "packer/rans/weight_coder.h"

namespace thimble {

inline std::vector<int32_t> decode_all(Bytes stored, uint64_t rows, uint64_t columns, const std::string& where,
                                       int trellis_bits = 0, uint32_t most_magnitude = kMaxCodeMagnitude) {
  std::vector<int32_t> all;
  decode_weights([&](std::span<const int32_t> codes) { all.insert(all.end(), codes.begin(), codes.end()); }, stored,
                 rows, columns, where, trellis_bits, most_magnitude);
  return all;
}

}  // namespace thimble
