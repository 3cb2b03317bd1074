// code_learner_test.cpp: codes stay what they are until something moves them, and learn what rounding alone misses.
#include "gptq/slope/code_learner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "gptq/slope/rate_model.h"
#include "gptq/slope/slope_solver.h"
#include "runtime/base/parallel.h"
#include "runtime/base/random.h"

namespace thimble::code_learner_test {
namespace {

const std::string kName = "matrix";

// Of deviation 1.
float random_value(uint64_t seed, uint64_t stream, uint64_t i) {
  return static_cast<float>(3.46 * (uniform_at(seed, stream, i) - 0.5));
}

QuantizedTensor tensor_of(SteppedCodes codes) {
  const auto rows = static_cast<int64_t>(codes.row_steps.size()),
             columns = static_cast<int64_t>(codes.column_steps.size());
  return {kName, {rows, columns}, std::move(codes)};
}

// Steps of a few octaves.
SlopeGrid random_grid(int trellis_bits, int64_t rows, int64_t columns) {
  auto steps = [](int64_t count, uint64_t stream, double base) {
    std::vector<int16_t> axis;
    for (int64_t i = 0; i < count; ++i)
      axis.push_back(static_cast<int16_t>(base + 100 * uniform_at(3, stream, static_cast<uint64_t>(i))));
    return axis;
  };
  return {trellis_bits, 0, steps(rows, 1, -200), steps(columns, 2, -50)};
}

Matrix random_weights(int64_t rows, int64_t columns) {
  Matrix weights(rows, columns);
  for (size_t i = 0; i < weights.values().size(); ++i) weights.values()[i] = random_value(5, 0, i);
  return weights;
}

QuantizedTensor rounded(ConstMatrixView weights, int trellis_bits) {
  return tensor_of(
      solve_slope(weights, nullptr, random_grid(trellis_bits, weights.rows, weights.cols), {}, kName).codes);
}

QuantizedModel model_of(QuantizedTensor tensor) {
  QuantizedModel model;
  model.tensors = {std::move(tensor)};
  return model;
}

// loss = sum over rows of e H e^T with e = quantized - weights, (e H)(k) = e(k) + coupling_ * sum of e over the group
// of kGroup columns that k is in: errors of neighbours add up, which rounding without a Hessian does not see.
class QuadraticTest : public ::testing::Test {
 protected:
  static constexpr int64_t kRows = 70, kColumns = 24, kGroup = 8;

  double loss(const QuantizedTensor& tensor) const {
    const Matrix errors = errors_of(tensor), by_errors = times_hessian(errors);
    double sum = 0;
    for (size_t i = 0; i < errors.values().size(); ++i)
      sum += double{errors.values()[i]} * double{by_errors.values()[i]};
    return sum;
  }
  MatrixGradients gradients(const QuantizedTensor& tensor) const { return {{kName, times_hessian(errors_of(tensor))}}; }

  CodeLearner learn(const CodeLearnerOptions& options, int64_t steps, CodeLearner learner) {
    QuantizedModel model = model_of(first_);
    while (learner.steps_done() < steps) {
      if (learner.needs_paths()) learner.find_path(0, model.tensors[0]);
      MatrixGradients gradients = this->gradients(model.tensors[0]);
      learner.step(gradients, model, options);
    }
    return learner;
  }
  CodeLearner learn(const CodeLearnerOptions& options) {
    return learn(options, options.steps, CodeLearner(model_of(first_), {kName}));
  }
  QuantizedTensor path(const CodeLearner& learner, double rate_weight = 0) const {
    QuantizedTensor tensor = first_;
    learner.find_path(rate_weight, tensor);
    return tensor;
  }

  float coupling_ = 3;
  const Matrix weights_ = random_weights(kRows, kColumns);
  QuantizedTensor first_ = rounded(weights_, 4);

 private:
  Matrix errors_of(const QuantizedTensor& tensor) const {
    Matrix errors = stored_matrix(tensor).widened();
    for (size_t i = 0; i < errors.values().size(); ++i) errors.values()[i] -= weights_.values()[i];
    return errors;
  }
  Matrix times_hessian(const Matrix& errors) const {
    Matrix product = errors;
    for (int64_t r = 0; r < errors.rows(); ++r)
      for (int64_t first = 0; first < errors.cols(); first += kGroup) {
        float sum = 0;
        for (int64_t k = first; k < first + kGroup; ++k) sum += errors(r, k);
        for (int64_t k = first; k < first + kGroup; ++k) product(r, k) += coupling_ * sum;
      }
    return product;
  }
};

TEST(CodeLearner, KeepsCodesThatNothingHasMoved) {
  for (int trellis_bits : {0, 2, 3, 8})
    for (int64_t rows : {1, 2, 513, 1100}) {
      SCOPED_TRACE(::testing::Message() << trellis_bits << " bits, " << rows << " rows");
      QuantizedTensor tensor = rounded(random_weights(rows, 3), trellis_bits);
      const QuantizedTensor before = tensor;
      const CodeLearner learner(model_of(tensor), {kName});
      EXPECT_EQ(learner.matrices(), std::vector<std::string>{kName});
      std::get<SteppedCodes>(tensor.data).codes = {};
      learner.find_path(0, tensor);
      EXPECT_EQ(tensor, before);
    }
}

// The furthest codes of any set come back too.
TEST(CodeLearner, KeepsTheLargestCodes) {
  for (int trellis_bits : {0, 2, 8}) {
    QuantizedTensor tensor =
        tensor_of({trellis_bits, CodeArray{kMaxSteppedCode - 4, 0, 4 - kMaxSteppedCode, 1, -1, 3}, {0, 0, 0}, {5, -7}});
    const QuantizedTensor before = tensor;
    CodeLearner(model_of(tensor), {kName}).find_path(0, tensor);
    EXPECT_EQ(tensor, before) << trellis_bits;
  }
}

TEST(CodeLearner, LeavesOutWhatHasNoCodes) {
  QuantizedModel model = model_of(rounded(random_weights(4, 4), 2));
  model.tensors.push_back({"raw", {2}, RawTensor{DType::kF32, ByteVector(8)}});
  model.tensors.push_back({"zeros", {2, 2}, SteppedCodes{2, CodeArray{0, 0, 0, 0}, {0, 0}, {0, 0}}});
  EXPECT_EQ(CodeLearner(model, {kName, "raw", "zeros"}).matrices(), std::vector<std::string>{kName});
  EXPECT_TRUE(CodeLearner(model, {"raw", "other"}).matrices().empty());
}

TEST_F(QuadraticTest, ErrorsThatAddUpAreLearnedAway) {
  const double before = loss(first_);
  const CodeLearner learner = learn({.steps = 160, .rate = 0.05});
  EXPECT_EQ(learner.steps_done(), 160);
  EXPECT_LT(loss(path(learner)), 0.8 * before);
}

// Where rounding to the nearest path is best already, gradients of what it leaves flip some codes to and fro.
TEST_F(QuadraticTest, WhatIsBestLosesLittle) {
  coupling_ = 0;
  const double before = loss(first_);
  const double after = loss(path(learn({.steps = 160, .rate = 0.05})));
  EXPECT_LT(after, 1.25 * before);
}

// Where the gradient is zero, codes stay.
TEST_F(QuadraticTest, WeightsWithoutGradientsStay) {
  CodeLearner learner(model_of(first_), {kName});
  QuantizedModel model = model_of(first_);
  for (int64_t i = 0; i < 40; ++i) {
    MatrixGradients all = gradients(model.tensors[0]);
    for (int64_t r = 0; r < kRows; ++r) std::fill_n(all.at(kName).row(r), kColumns / 2, 0.0f);
    learner.step(all, model, {.steps = 40, .rate = 0.2});
  }
  const QuantizedTensor moved = path(learner);
  const Matrix values = stored_matrix(moved).widened(), before = stored_matrix(first_).widened();
  int64_t changed = 0;
  for (int64_t r = 0; r < kRows; ++r)
    for (int64_t k = 0; k < kColumns; ++k) {
      if (k < kColumns / 2)
        ASSERT_EQ(values(r, k), before(r, k)) << r << ' ' << k;
      else
        changed += values(r, k) != before(r, k) ? 1 : 0;
    }
  EXPECT_GT(changed, kRows * kColumns / 8);
}

TEST_F(QuadraticTest, ScaleOfGradientsChangesNothing) {
  CodeLearner one(model_of(first_), {kName}), other = one;
  const QuantizedModel model = model_of(first_);
  for (int64_t i = 0; i < 8; ++i) {
    MatrixGradients all = gradients(first_), scaled = gradients(first_);
    for (float& value : scaled.at(kName).values()) value *= 1024;
    one.step(all, model, {.steps = 8, .rate = 0.3});
    other.step(scaled, model, {.steps = 8, .rate = 0.3});
  }
  EXPECT_EQ(path(one), path(other));
  EXPECT_NE(path(one), first_);
}

// The more a bit weighs, the fewer there are, and the further is the path.
TEST_F(QuadraticTest, RateWeightTakesBits) {
  const CodeLearner learner = learn({.steps = 16, .rate = 0.1});
  auto magnitude = [&](const QuantizedTensor& tensor) {
    double sum = 0;
    std::get<SteppedCodes>(tensor.data).codes.visit([&](auto codes) {
      for (auto code : codes) sum += std::abs(static_cast<double>(code));
    });
    return sum;
  };
  double last = magnitude(path(learner));
  for (double rate_weight : {3.0, 30.0, 1000.0}) {
    const double found = magnitude(path(learner, rate_weight));
    EXPECT_LT(found, last) << rate_weight;
    last = found;
  }
}

// At a price, gradients of bits pull latents towards 0, those of wide rows less.
TEST(CodeLearner, BitsHaveAPrice) {
  constexpr int64_t kRows = 64, kColumns = 48;
  const QuantizedModel model = model_of(rounded(random_weights(kRows, kColumns), 3));
  auto moved = [&](double price) {
    CodeLearner learner(model, {kName});
    MatrixGradients none = {{kName, Matrix(kRows, kColumns)}};
    learner.step(none, model, {.steps = 8, .rate = 0.1, .bit_price = price});
    return learner.latents().at(kName);
  };
  const CodeLearner::Latents before = moved(0), after = moved(2);
  EXPECT_EQ(before.levels, CodeLearner(model, {kName}).latents().at(kName).levels);
  for (int64_t r = 0; r < kRows; ++r)
    for (int64_t k = 0; k < kColumns; ++k) {
      const auto i = static_cast<size_t>(r * kColumns + k);
      const float level = before.levels[i];
      const float gradient = 2 * bits_by_level(level, before.scales.rows[static_cast<size_t>(r)] *
                                                          before.scales.columns[static_cast<size_t>(k)]);
      EXPECT_NEAR(after.second[i], 0.05 * gradient * gradient, 1e-4 * gradient * gradient);
      EXPECT_EQ(std::abs(after.levels[i]) < std::abs(level), level != 0);
    }
}

// bits_by_level() is the derivative of -log2 of a Gaussian's density; deviations that rounding alone makes count as
// such.
TEST(CodeLearner, BitsByLevelAreADerivative) {
  auto bits = [](double level, double deviation) { return level * level / (2 * deviation * deviation) / std::log(2); };
  for (double deviation : {0.6, 1.0, 3.0, 40.0})
    for (double level : {-7.0, -0.5, 0.0, 1.0, 12.0}) {
      const double expected = (bits(level + 1e-3, deviation) - bits(level - 1e-3, deviation)) / 2e-3;
      EXPECT_NEAR(bits_by_level(static_cast<float>(level), static_cast<float>(deviation)), expected,
                  1e-5 * (1 + std::abs(expected)));
    }
  EXPECT_EQ(bits_by_level(1, 0), bits_by_level(1, 0.1F));
  EXPECT_NEAR(bits_by_level(1, 0), 3 / std::log(2), 1e-5);
}

// Scales of levels are those of what the rows and columns were made of.
TEST(CodeLearner, LevelScalesAreDeviations) {
  constexpr int64_t kRows = 40, kColumns = 500;
  Matrix levels = random_weights(kRows, kColumns);
  auto row_of = [](int64_t r) { return static_cast<float>(1 + r % 3); };
  for (int64_t r = 0; r < kRows; ++r)
    for (int64_t k = 0; k < kColumns; ++k) levels(r, k) *= row_of(r);
  const LevelScales scales = fit_level_scales(levels.view());
  const float column = scales.columns[7];
  for (int64_t r = 0; r < kRows; ++r)
    EXPECT_NEAR(scales.rows[static_cast<size_t>(r)] * column, row_of(r), 0.25F * row_of(r)) << r;
}

TEST_F(QuadraticTest, GoesOnAsIfNothingHadHappened) {
  const CodeLearnerOptions options = {.steps = 40, .rate = 0.1};
  const QuantizedTensor expected = path(learn(options));
  const CodeLearner half = learn(options, 20, CodeLearner(model_of(first_), {kName}));
  EXPECT_TRUE(half.needs_paths());
  EXPECT_NE(path(half), expected);
  EXPECT_EQ(path(learn(options, 40, half)), expected);
}

// Rows of more than one task.
TEST(CodeLearner, ThreadsDoNotChangeBits) {
  constexpr int64_t kRows = 600, kColumns = 300;
  const QuantizedModel model = model_of(rounded(random_weights(kRows, kColumns), 3));
  auto learned = [&] {
    CodeLearner learner(model, {kName});
    for (uint64_t i = 0; i < 6; ++i) {
      MatrixGradients all = {{kName, Matrix(kRows, kColumns)}};
      for (size_t k = 0; k < all.at(kName).values().size(); ++k) all.at(kName).values()[k] = random_value(6, i, k);
      learner.step(all, model, {.steps = 6, .rate = 0.5});
    }
    QuantizedTensor tensor = model.tensors[0];
    learner.find_path(0.05, tensor);
    return tensor;
  };
  const QuantizedTensor expected = learned();
  EXPECT_NE(expected, model.tensors[0]);
  for (int threads : {1, 3}) {
    ThreadLimit limit(threads);
    EXPECT_EQ(learned(), expected);
  }
}

}  // namespace
}  // namespace thimble::code_learner_test
