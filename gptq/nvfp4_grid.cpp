// nvfp4_grid.cpp: see nvfp4_grid.h.
#include "gptq/nvfp4_grid.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/nvfp4_block.h"
#include "runtime/parallel.h"

namespace thimble {
namespace {

constexpr int64_t kRowsPerTask = 64;
// Codes tried below and above the one that maps the largest magnitude to 6. Eight codes are an octave: a third of the
// range is given up at most, and the largest magnitude is mapped to 3 and more.
constexpr int kCodesBelow = 4, kCodesAbove = 8;

float max_magnitude(const float* values, int64_t count) {
  float most = 0;
  for (int64_t i = 0; i < count; ++i) most = std::max(most, std::abs(values[i]));
  return most;
}

double squared_error(const float* weights, int64_t count, const Nvfp4BlockGrid& grid) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double difference = weights[i] - double{grid.value(grid.nearest(weights[i]))};
    sum += difference * difference;
  }
  return sum;
}

uint8_t best_scale(const float* weights, int64_t count, float tensor_scale) {
  const float most = max_magnitude(weights, count);
  if (most == 0) return 0;
  const int middle = ue4m3_from_float(most / kE2m1Max / tensor_scale);
  double least = std::numeric_limits<double>::infinity();
  int best = 0;
  for (int code = std::max(0, middle - kCodesBelow); code <= std::min<int>(kUe4m3MaxCode, middle + kCodesAbove); ++code)
    if (const double error =
            squared_error(weights, count, {float_from_ue4m3(static_cast<uint8_t>(code)), tensor_scale});
        error < least) {
      least = error;
      best = code;
    }
  return static_cast<uint8_t>(best);
}

}  // namespace

Nvfp4Codes choose_nvfp4_scales(ConstMatrixView weights) {
  Nvfp4Codes coded = nvfp4_zeros(weights.rows, weights.cols);
  float most = 0;
  for (int64_t r = 0; r < weights.rows; ++r) most = std::max(most, max_magnitude(weights.row(r), weights.cols));
  coded.tensor_scale = nvfp4_tensor_scale(most);
  const int64_t blocks = nvfp4_blocks(weights.cols);
  parallel_chunks(weights.rows, kRowsPerTask, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r)
      for (int64_t b = 0; b < blocks; ++b) {
        const int64_t begin = b * kNvfp4Block, count = std::min<int64_t>(kNvfp4Block, weights.cols - begin);
        coded.block_scales[static_cast<size_t>(r * blocks + b)] =
            best_scale(weights.row(r) + begin, count, coded.tensor_scale);
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
