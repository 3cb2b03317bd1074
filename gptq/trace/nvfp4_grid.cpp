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
  parallel_chunks(weights.rows, kRowsPerTask, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const Nvfp4Row row = grid_row(coded, r, weights.cols);
      for (int64_t k = 0; k < weights.cols; ++k)
        set_code(coded, weights.cols, r, k, row.round(row.scale(k), weights.row(r)[k]).code);
    }
  });
  return coded;
}

}  // namespace thimble
