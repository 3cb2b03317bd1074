// nvfp4_grid.cpp: see nvfp4_grid.h.
#include "gptq/trace/nvfp4_grid.h"

#include <algorithm>

#include "runtime/base/parallel.h"

namespace thimble {
namespace {

constexpr int64_t kRowsPerTask = 64;

}  // namespace

Nvfp4Codes choose_nvfp4_scales(ConstMatrixView weights) {
  Nvfp4Codes coded = nvfp4_zeros(weights.rows, weights.cols);
  coded.tensor_scale = nvfp4_tensor_scale(weights);
  const int64_t blocks = nvfp4_blocks(weights.cols);
  parallel_chunks(weights.rows, kRowsPerTask, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r)
      for (int64_t b = 0; b < blocks; ++b) {
        const int64_t begin = b * kNvfp4Block;
        const int count = static_cast<int>(std::min<int64_t>(kNvfp4Block, weights.cols - begin));
        coded.block_scales[static_cast<size_t>(r * blocks + b)] =
            best_nvfp4_block_scale(weights.row(r) + begin, count, coded.tensor_scale);
      }
  });
  return coded;
}

Nvfp4Codes quantize_nvfp4_to_nearest(ConstMatrixView weights) {
  Nvfp4Codes coded = choose_nvfp4_scales(weights);
  const int64_t blocks = nvfp4_blocks(weights.cols), row_bytes = nvfp4_row_bytes(weights.cols);
  parallel_chunks(weights.rows, kRowsPerTask, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r)
      for (int64_t k = 0; k < weights.cols; ++k) {
        const uint8_t scale = coded.block_scales[static_cast<size_t>(r * blocks + k / kNvfp4Block)];
        const Nvfp4BlockGrid grid{float_from_ue4m3(scale), coded.tensor_scale};
        set_nvfp4_code(coded, row_bytes, r, k, grid.nearest(weights.row(r)[k]));
      }
  });
  return coded;
}

}  // namespace thimble
