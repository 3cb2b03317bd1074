// step_plan.cpp: see step_plan.h.
#include "gptq/step_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/quantized_model.h"

namespace thimble {
namespace {

int16_t rounded_step(double log2_step) {
  double step = std::round(log2_step * kStepsPerOctave / kStepGrid) * kStepGrid;
  return static_cast<int16_t>(std::clamp<double>(step, -kMaxStep, kMaxStep));
}

}  // namespace

StepShape step_shape(const MatrixLoss& loss, const HessianFactor* factor) {
  StepShape shape;
  shape.columns.resize(loss.diagonal.size());
  if (factor)
    for (size_t i = 0; i < factor->order.size(); ++i)
      shape.columns[static_cast<size_t>(factor->order[i])] =
          std::log2(factor->upper(static_cast<int64_t>(i), static_cast<int64_t>(i)));
  else
    std::ranges::transform(loss.diagonal, shape.columns.begin(), [](double h) { return -std::log2(h) / 2; });

  double mean = std::accumulate(shape.columns.begin(), shape.columns.end(), 0.0) /
                static_cast<double>(std::max<size_t>(1, shape.columns.size()));
  for (double& column : shape.columns) column -= mean;
  for (double weight : loss.row_weights) shape.rows.push_back(mean - std::log2(weight) / 2);
  return shape;
}

double shrinkage_damping(const MatrixLoss& loss, double weight_mean_square, double log2_c) {
  const double mean_weight = std::accumulate(loss.row_weights.begin(), loss.row_weights.end(), 0.0) /
                             static_cast<double>(std::max<size_t>(1, loss.row_weights.size()));
  const double felt = mean_weight * weight_mean_square * loss.hessian->mean_diagonal();
  return felt > 0 ? std::exp2(2 * log2_c) / 12 / felt : 0;
}

Steps round_steps(const StepShape& shape, double log2_c) {
  Steps steps;
  for (double row : shape.rows) steps.rows.push_back(rounded_step(row + log2_c - 1));
  for (double column : shape.columns) steps.columns.push_back(rounded_step(column));
  return steps;
}

}  // namespace thimble
