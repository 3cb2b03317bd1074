// grid.cpp: see grid.h.
#include "gptq/trace/grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>

#include "runtime/base/error.h"
#include "runtime/base/parallel.h"

namespace thimble {
namespace {

constexpr int64_t kGridRowsPerTask = 64;
constexpr uint16_t kFp16Infinity = 0x7c00;

// Every weight by itself. `coded`: with its scales.
template <typename Codes>
Codes rounded_to_nearest(ConstMatrixView weights, Codes coded) {
  parallel_chunks(weights.rows, kGridRowsPerTask, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const auto row = grid_row(coded, r, weights.cols);
      for (int64_t k = 0; k < weights.cols; ++k)
        set_code(coded, weights.cols, r, k, row.round(row.scale(k), weights.row(r)[k]).code);
    }
  });
  return coded;
}

}  // namespace

double quantile(std::span<const float> largest, size_t count, double fraction) {
  if (count == 0) return 0;
  double position = fraction * static_cast<double>(count - 1);
  auto below = static_cast<size_t>(position);
  double low = largest[count - 1 - below];
  if (below + 1 == count) return low;
  double high = largest[count - 2 - below];
  return low + (high - low) * (position - static_cast<double>(below));
}

uint16_t row_scale(double clip, int max_code) {
  return fp16_from_float(static_cast<float>(std::max(clip, 1.0) / max_code));
}

std::vector<uint16_t> row_scales(ConstMatrixView weights, std::span<const double> clip_fractions, int max_code,
                                 const std::string& name) {
  const auto rows = static_cast<size_t>(weights.rows), columns = static_cast<size_t>(weights.cols);
  const double lowest = std::ranges::min(clip_fractions);
  const size_t sorted = columns == 0 ? 0 : columns - static_cast<size_t>(lowest * static_cast<double>(columns - 1));
  std::vector<uint16_t> scales(clip_fractions.size() * rows);
  parallel_chunks(weights.rows, kGridRowsPerTask, [&](int64_t first, int64_t last) {
    std::vector<float> magnitudes(columns), largest(sorted);
    for (int64_t r = first; r < last; ++r) {
      std::transform(weights.row(r), weights.row(r) + columns, magnitudes.begin(),
                     [](float weight) { return std::abs(weight); });
      std::ranges::partial_sort_copy(magnitudes, largest, std::greater{});
      for (size_t c = 0; c < clip_fractions.size(); ++c) {
        double clip = quantile(largest, columns, clip_fractions[c]);
        uint16_t& scale = scales[c * rows + static_cast<size_t>(r)];
        scale = row_scale(clip, max_code);
        if (scale == kFp16Infinity)
          throw Error(ExitCode::kBadInput,
                      fmt::format("tensor '{}': row {} reaches {}; codes up to {} with an fp16 scale reach {}", name, r,
                                  clip, max_code, 65504.0 * max_code));
      }
    }
  });
  return scales;
}

RowScaledCodes quantize_rows_to_nearest(ConstMatrixView weights, int max_code, const std::string& name) {
  return rounded_to_nearest(
      weights, RowScaledCodes{max_code, std::vector<int8_t>(static_cast<size_t>(weights.rows * weights.cols)),
                              row_scales(weights, std::array{kNearestClipFraction}, max_code, name)});
}

Nvfp4Codes choose_nvfp4_scales(ConstMatrixView weights) {
  Nvfp4Codes coded = nvfp4_zeros(weights.rows, weights.cols);
  coded.tensor_scale = nvfp4_tensor_scale(weights);
  const int64_t blocks = nvfp4_blocks(weights.cols);
  parallel_chunks(weights.rows, kGridRowsPerTask, [&](int64_t first, int64_t last) {
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
  return rounded_to_nearest(weights, choose_nvfp4_scales(weights));
}

}  // namespace thimble
