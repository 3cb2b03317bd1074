// gptq_replay.cpp: see gptq_replay.h.
#include "tests/gptq/gptq_replay.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "runtime/dtype.h"

namespace thimble {

GptqReplay replay_gptq(ConstMatrixView weights, const HessianFactor& factor, const RowScaledCodes& codes) {
  GptqReplay replay;
  std::set<int64_t> dead(factor.dead_columns.begin(), factor.dead_columns.end());
  std::vector<double> w(static_cast<size_t>(weights.cols));
  double squared_errors = 0;
  for (int64_t r = 0; r < weights.rows; ++r) {
    double scale = float_from_fp16(codes.row_scales.at(static_cast<size_t>(r)));
    for (size_t i = 0; i < w.size(); ++i) w[i] = dead.contains(factor.order[i]) ? 0.0 : weights.row(r)[factor.order[i]];
    double row_squared_errors = 0;
    for (int64_t i = 0; i < weights.cols; ++i) {
      int64_t column = factor.order[static_cast<size_t>(i)];
      double code = codes.codes.at(static_cast<size_t>(r * weights.cols + column));
      double argument = std::clamp(w[static_cast<size_t>(i)] / scale, double(-codes.max_code), double(codes.max_code));
      replay.worst_excess = std::max(replay.worst_excess, std::abs(argument - code) - 0.5);
      double error = (w[static_cast<size_t>(i)] - code * scale) / factor.upper(i, i);
      for (int64_t j = i + 1; j < weights.cols; ++j) w[static_cast<size_t>(j)] -= error * factor.upper(i, j);
      double difference = weights.row(r)[column] - code * scale;
      row_squared_errors += difference * difference;
      replay.weighted_loss += error * error;
    }
    squared_errors += row_squared_errors;
  }
  replay.weight_mse = squared_errors / static_cast<double>(weights.rows * weights.cols);
  return replay;
}

}  // namespace thimble
