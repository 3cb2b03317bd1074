// step_plan.cpp: see step_plan.h.
#include "gptq/slope/step_plan.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "runtime/codes/quantized_model.h"

namespace thimble {
namespace {

int16_t rounded_step(double log2_step) {
  double step = std::round(log2_step * kStepsPerOctave / kStepGrid) * kStepGrid;
  return static_cast<int16_t>(std::clamp<double>(step, -kMaxStep, kMaxStep));
}

// Whole octaves by which rows of log2 steps rows[r] + shift lie beyond what the format allows, on one side.
double beyond_format(const std::vector<double>& rows, double shift) {
  constexpr double kMost = kMaxStep / kStepsPerOctave;
  const auto [low, high] = std::ranges::minmax(rows);
  const double above = std::ceil(high + shift - kMost), below = std::floor(low + shift + kMost);
  if (above > 0) return std::clamp(below, 0.0, above);
  return std::clamp(above, std::min(below, 0.0), 0.0);
}

}  // namespace

StepShape step_shape(const MatrixLoss& loss, const std::vector<double>& row_weights,
                     const std::vector<double>& upper_diagonal) {
  StepShape shape;
  for (double u : upper_diagonal) shape.columns.push_back(std::log2(u));
  if (upper_diagonal.empty())
    for (double h : loss.diagonal) shape.columns.push_back(-std::log2(h) / 2);

  const double mean = mean_of(shape.columns);
  for (double& column : shape.columns) column -= mean;
  for (double weight : row_weights) shape.rows.push_back(mean - std::log2(weight) / 2);
  return shape;
}

std::vector<double> level_row_weights(std::vector<double> row_weights, double power) {
  const double mean = mean_of(row_weights);
  for (double& weight : row_weights) weight = std::pow(weight, power) * std::pow(mean, 1 - power);
  return row_weights;
}

Shrinkage shrink(const MatrixLoss& loss, const std::vector<double>& row_mean_squares, double log2_c, double strength) {
  const double distortion = strength * std::exp2(2 * log2_c) / 12;
  const double mean_diagonal = mean_of(loss.diagonal);
  const double felt = mean_diagonal * mean_of(loss.row_weights) * mean_of(row_mean_squares);
  // A row of zeros costs nothing at any step: as long a one as can be told from it.
  const double smallest = mean_of(row_mean_squares) * 1e-6;
  Shrinkage shrinkage{felt > 0 ? distortion / felt : 0, loss.row_weights};
  for (size_t r = 0; r < row_mean_squares.size(); ++r)
    if (felt > 0) shrinkage.row_weights[r] += distortion / (mean_diagonal * std::max(row_mean_squares[r], smallest));
  return shrinkage;
}

double shrinkage_for(double bits) { return (std::exp2(2 * bits) - 1) * 12 / (2 * std::numbers::pi * std::numbers::e); }

Steps round_steps(const StepShape& shape, double log2_c) {
  const double log2_half = log2_c - 1;
  const double moved = shape.rows.empty() ? 0 : beyond_format(shape.rows, log2_half);
  Steps steps;
  for (double row : shape.rows) steps.rows.push_back(rounded_step(row + log2_half - moved));
  for (double column : shape.columns) steps.columns.push_back(rounded_step(column + moved));
  return steps;
}

}  // namespace thimble
