// step_plan_test.cpp: steps from losses, and the size that they will lead to.
#include "gptq/slope/step_plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "gptq/factor/hessian_factor.h"
#include "gptq/slope/rate_model.h"
#include "runtime/codes/quantized_model.h"

namespace thimble::step_plan_test {
namespace {

MatrixLoss loss_of(std::vector<double> diagonal, std::vector<double> row_weights) {
  SymmetricMatrix hessian(static_cast<int64_t>(diagonal.size()));
  for (size_t k = 0; k < diagonal.size(); ++k) hessian.lower_row(static_cast<int64_t>(k))[k] = diagonal[k];
  return {store_in_memory(std::move(hessian)), std::move(diagonal), std::move(row_weights)};
}

double step(const Steps& steps, size_t r, size_t k) {
  return 2 * static_cast<double>(step_size(steps.rows[r])) * static_cast<double>(step_size(steps.columns[k]));
}

// step(r, k) = c U_kk / sqrt(w_r) with U_kk = H_kk^(-1/2), as H is diagonal; powers of two need no rounding.
TEST(StepPlan, StepsAreThoseOfTheFormula) {
  MatrixLoss loss = loss_of({1, 16, 256}, {4, 64});
  HessianFactor factor = factor_hessian(*loss.hessian->load(), 0, "a");
  Steps steps = round_steps(step_shape(loss, loss.row_weights, factor.upper_diagonal()), -3);
  for (size_t r = 0; r < 2; ++r)
    for (size_t k = 0; k < 3; ++k)
      EXPECT_DOUBLE_EQ(step(steps, r, k), 0.125 / std::sqrt(loss.diagonal[k]) / std::sqrt(loss.row_weights[r]));
}

TEST(StepPlan, ADiagonalNeedsNoFactor) {
  MatrixLoss loss = loss_of({1, 16, 256}, {4, 64});
  HessianFactor factor = factor_hessian(*loss.hessian->load(), 0, "a");
  StepShape with = step_shape(loss, loss.row_weights, factor.upper_diagonal()),
            without = step_shape(loss, loss.row_weights, {});
  for (size_t k = 0; k < 3; ++k) EXPECT_NEAR(with.columns[k], without.columns[k], 1e-12);
  for (size_t r = 0; r < 2; ++r) EXPECT_NEAR(with.rows[r], without.rows[r], 1e-12);
}

TEST(StepPlan, RoundedStepsAreNearAndOnTheGrid) {
  std::mt19937 random(1);
  std::lognormal_distribution<double> spread(0, 2);
  StepShape shape;
  for (int i = 0; i < 100; ++i) {
    shape.rows.push_back(std::log2(spread(random)));
    shape.columns.push_back(std::log2(spread(random)));
  }
  Steps steps = round_steps(shape, 1.7);
  for (size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(steps.rows[i] % kStepGrid, 0);
    EXPECT_EQ(steps.columns[i] % kStepGrid, 0);
    EXPECT_LE(std::abs(std::log2(step(steps, i, i)) - shape.rows[i] - shape.columns[i] - 1.7), 0.125 + 1e-6);
  }
}

TEST(StepPlan, StepsStayWithinTheFormat) {
  Steps steps = round_steps({{-1000, 1000}, {0}}, 0);
  EXPECT_EQ(steps.rows, (std::vector<int16_t>{-kMaxStep, kMaxStep}));
}

TEST(StepPlan, ColumnsTakeWhatRowsMayNotHold) {
  for (double octaves : {-60.0, 60.0}) {
    const Steps steps = round_steps({{octaves - 1, octaves}, {-1, 1}}, 1);
    for (size_t r : {0, 1})
      for (size_t k : {0, 1})
        EXPECT_EQ(steps.rows[r] + steps.columns[k],
                  kStepsPerOctave * static_cast<int>(octaves + (r ? 0 : -1) + (k ? 1 : -1)));
  }
}

TEST(StepPlan, LevelledRowWeightsLieBetweenRowAndMean) {
  EXPECT_EQ(level_row_weights({1, 3}, 1), (std::vector<double>{1, 3}));
  EXPECT_EQ(level_row_weights({1, 3}, 0), (std::vector<double>{2, 2}));
  EXPECT_DOUBLE_EQ(level_row_weights({1, 7}, 0.5)[0], 2);
}

// Long steps end at sqrt(12 / strength) deviations, for rows and for columns.
TEST(StepPlan, StepsStayBelowTheWeights) {
  MatrixLoss loss = loss_of({1, 1, 1e-9}, {1, 1e-9});
  std::vector<double> squares = {0.25, 0.25};
  for (double strength : {1.0, 4.0}) {
    Shrinkage shrinkage = shrink(loss, squares, 10, strength);
    HessianFactor factor = factor_hessian(*loss.hessian->load(), shrinkage.damping, "a");
    Steps steps = round_steps(step_shape(loss, shrinkage.row_weights, factor.upper_diagonal()), 10);
    for (size_t k = 0; k < 3; ++k)
      for (size_t r = 0; r < 2; ++r) EXPECT_LT(step(steps, r, k), 1.2 * std::sqrt(12 / strength) * 0.5);
  }
  EXPECT_LT(shrink(loss, squares, -20, 1).damping, 1e-9);  // and short ones are as they were
}

// The size model has as many bits for a Gaussian in the longest steps that the strength allows.
TEST(StepPlan, ShrinkageLeavesTheBitsItIsAskedFor) {
  for (double bits : {0.1, 0.5, 1.0, 2.0}) {
    const double strength = shrinkage_for(bits), deviation_in_steps = std::sqrt(strength / 12);
    SizeModel model;
    model.add(std::vector{std::log2(deviation_in_steps)}, std::vector{0.0});
    EXPECT_NEAR(model.bits(0), bits, 0.04);  // whose deviations are sixteenths of an octave
  }
  EXPECT_EQ(shrinkage_for(0), 0);
}

TEST(StepPlan, RowsOfZerosKeepFiniteSteps) {
  MatrixLoss loss = loss_of({1, 1}, {1, 1});
  Shrinkage shrinkage = shrink(loss, {0.25, 0}, 0, 1);
  for (double weight : shrinkage.row_weights) EXPECT_TRUE(std::isfinite(weight) && weight > 0);
  for (double weight : shrink(loss, {0, 0}, 0, 1).row_weights) EXPECT_EQ(weight, 1);
}

// Uniform quantization of Gaussian samples: the entropy of the codes by histogram.
double measured_bits(double deviation_in_steps) {
  std::mt19937 random(1);
  std::normal_distribution<double> sample(0, deviation_in_steps);
  std::map<int64_t, double> counts;
  constexpr int kSamples = 200'000;
  for (int i = 0; i < kSamples; ++i) ++counts[std::llround(sample(random))];
  double bits = 0;
  for (const auto& [code, count] : counts) bits -= count / kSamples * std::log2(count / kSamples);
  return bits;
}

TEST(SizeModel, IsNearTheEntropyOfCodes) {
  std::vector<double> row = {0}, column = {0};
  SizeModel model;
  model.add(row, column);
  for (double log2_deviation : {-2.0, -1.0, 0.0, 1.0, 3.0}) {
    double measured = measured_bits(std::exp2(log2_deviation));
    EXPECT_NEAR(model.bits(-log2_deviation), measured, 0.25) << log2_deviation;
  }
}

TEST(SizeModel, FindsTheStepForASize) {
  SizeModel model;
  model.add(std::vector<double>{-1, 0, 4}, std::vector<double>{0.5, 2, -7, 0});
  SizeModel twice;
  twice.add(model);
  twice.add(model);
  for (double log2_c : {-5.0, 0.0, 3.0}) {
    EXPECT_NEAR(model.log2_c_for(model.bits(log2_c)), log2_c, 1e-6);
    EXPECT_DOUBLE_EQ(twice.bits(log2_c), 2 * model.bits(log2_c));
  }
}

}  // namespace
}  // namespace thimble::step_plan_test
