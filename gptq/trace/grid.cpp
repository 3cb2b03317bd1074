// grid.cpp: see grid.h.
#include "gptq/trace/grid.h"

#include <fmt/format.h>

#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/parallel.h"
#include "runtime/tensor/dtype.h"

namespace thimble {
namespace {

constexpr int64_t kRowsPerTask = 64;
constexpr uint16_t kFp16Infinity = 0x7c00;

}  // namespace

double quantile(std::span<float> values, double fraction) {
  if (values.empty()) return 0;
  double position = fraction * static_cast<double>(values.size() - 1);
  auto below = static_cast<size_t>(position);
  auto middle = values.begin() + static_cast<std::ptrdiff_t>(below);
  std::nth_element(values.begin(), middle, values.end());
  double low = *middle;
  if (below + 1 == values.size()) return low;
  double high = *std::min_element(middle + 1, values.end());
  return low + (high - low) * (position - static_cast<double>(below));
}

uint16_t row_scale(double clip, int max_code) {
  return fp16_from_float(static_cast<float>(std::max(clip, 1.0) / max_code));
}

std::vector<uint16_t> row_scales(ConstMatrixView weights, double clip_fraction, int max_code, const std::string& name) {
  std::vector<uint16_t> scales(static_cast<size_t>(weights.rows));
  parallel_chunks(weights.rows, kRowsPerTask, [&](int64_t first, int64_t last) {
    std::vector<float> magnitudes(static_cast<size_t>(weights.cols));
    for (int64_t r = first; r < last; ++r) {
      std::transform(weights.row(r), weights.row(r) + weights.cols, magnitudes.begin(),
                     [](float weight) { return std::abs(weight); });
      double clip = quantile(magnitudes, clip_fraction);
      scales[static_cast<size_t>(r)] = row_scale(clip, max_code);
      if (scales[static_cast<size_t>(r)] == kFp16Infinity)
        throw Error(ExitCode::kBadInput,
                    fmt::format("tensor '{}': row {} reaches {}; codes up to {} with an fp16 scale reach {}", name, r,
                                clip, max_code, 65504.0 * max_code));
    }
  });
  return scales;
}

RowScaledCodes quantize_rows_to_nearest(ConstMatrixView weights, int max_code, const std::string& name) {
  RowScaledCodes result{max_code, std::vector<int8_t>(static_cast<size_t>(weights.rows * weights.cols)),
                        row_scales(weights, kNearestClipFraction, max_code, name)};
  parallel_chunks(weights.rows, kRowsPerTask, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      double scale = float_from_fp16(result.row_scales[static_cast<size_t>(r)]);
      int8_t* codes = result.codes.data() + r * weights.cols;
      for (int64_t k = 0; k < weights.cols; ++k) codes[k] = nearest_code(weights.row(r)[k], scale, max_code);
    }
  });
  return result;
}

}  // namespace thimble
