// random_nvfp4.h: seeded NVFP4 matrices for tests.
#pragma once

#include <algorithm>
#include <random>

#include "runtime/codes/nvfp4_matrix.h"

namespace thimble {

// Any codes but -0, any scales from 2^-9 to 2^`top`.
inline Nvfp4Codes random_nvfp4(int64_t rows, int64_t columns, uint32_t seed, float tensor_scale, int top = 3) {
  std::mt19937 random(seed);
  Nvfp4Codes coded = nvfp4_zeros(rows, columns);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t k = 0; k < columns; ++k) {
      const auto code = static_cast<uint8_t>(random() % 16);
      set_nvfp4_code(coded, nvfp4_row_bytes(columns), r, k, code == kE2m1Sign ? uint8_t{0} : code);
    }
  for (uint8_t& scale : coded.block_scales) scale = static_cast<uint8_t>(1 + random() % (8 * (7 + top)));
  coded.tensor_scale = tensor_scale;
  return coded;
}

// All elements 1.5, all scales 1.
inline Nvfp4Codes uniform_nvfp4(int64_t rows, int64_t columns) {
  Nvfp4Codes coded = nvfp4_zeros(rows, columns);
  std::ranges::fill(coded.codes, uint8_t{0x33});
  std::ranges::fill(coded.block_scales, uint8_t{0x38});
  return coded;
}

}  // namespace thimble
