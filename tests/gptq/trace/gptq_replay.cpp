// gptq_replay.cpp: see gptq_replay.h.
#include "tests/gptq/trace/gptq_replay.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "runtime/tensor/dtype.h"

namespace thimble {
namespace {

// What became of a weight, and how far that is from the best.
struct Judged {
  double value, excess;
};

// judge(r, k, w): of the weight (r, k), which earlier errors made w.
template <typename Judge>
GptqReplay replay(ConstMatrixView weights, const HessianFactor& factor, const Judge& judge) {
  GptqReplay replay;
  std::set<int64_t> dead(factor.dead_columns.begin(), factor.dead_columns.end());
  std::vector<double> w(static_cast<size_t>(weights.cols));
  double squared_errors = 0;
  for (int64_t r = 0; r < weights.rows; ++r) {
    for (size_t i = 0; i < w.size(); ++i) w[i] = dead.contains(factor.order[i]) ? 0.0 : weights.row(r)[factor.order[i]];
    double row_squared_errors = 0;
    for (int64_t i = 0; i < weights.cols; ++i) {
      int64_t column = factor.order[static_cast<size_t>(i)];
      Judged judged = judge(r, column, w[static_cast<size_t>(i)]);
      replay.worst_excess = std::max(replay.worst_excess, judged.excess);
      double error = (w[static_cast<size_t>(i)] - judged.value) / factor.upper(i, i);
      for (int64_t j = i + 1; j < weights.cols; ++j) w[static_cast<size_t>(j)] -= error * factor.upper(i, j);
      double difference = weights.row(r)[column] - judged.value;
      row_squared_errors += difference * difference;
      replay.weighted_loss += error * error;
    }
    squared_errors += row_squared_errors;
  }
  replay.weight_mse = squared_errors / static_cast<double>(weights.rows * weights.cols);
  return replay;
}

}  // namespace

GptqReplay replay_gptq(ConstMatrixView weights, const HessianFactor& factor, const RowScaledCodes& codes) {
  return replay(weights, factor, [&](int64_t r, int64_t k, double w) -> Judged {
    double scale = float_from_fp16(codes.row_scales.at(static_cast<size_t>(r)));
    double code = codes.codes.at(static_cast<size_t>(r * weights.cols + k));
    double argument = std::clamp(w / scale, double(-codes.max_code), double(codes.max_code));
    return {code * scale, std::abs(argument - code) - 0.5};
  });
}

GptqReplay replay_gptq(ConstMatrixView weights, const HessianFactor& factor, const Nvfp4Codes& codes) {
  const Matrix values = dequantize_nvfp4(codes, weights.rows, weights.cols);
  const int64_t blocks = nvfp4_blocks(weights.cols), row_bytes = nvfp4_row_bytes(weights.cols);
  return replay(weights, factor, [&](int64_t r, int64_t k, double w) -> Judged {
    const uint8_t code = nvfp4_code(codes, row_bytes, r, k);
    const double scale =
        double{float_from_ue4m3(codes.block_scales.at(static_cast<size_t>(r * blocks + k / kNvfp4Block)))} *
        codes.tensor_scale;
    if (scale == 0) return {values(r, k), code == 0 ? 0.0 : std::numeric_limits<double>::infinity()};
    const double argument = std::clamp<double>(w / scale, -kE2m1Max, kE2m1Max);
    double nearest = std::numeric_limits<double>::infinity();
    for (uint8_t other = 0; other < 16; ++other)
      nearest = std::min(nearest, std::abs(argument - float_from_e2m1(other)));
    return {values(r, k), std::abs(argument - float_from_e2m1(code)) - nearest};
  });
}

}  // namespace thimble
