// slope_solver_test.cpp: the solver against GPTQ with a step per column written down as naively as possible, and what
// it reports against dequantized codes.
#include "gptq/slope/slope_solver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "gptq/slope/rate_model.h"
#include "gptq/slope/trellis_quantizer.h"
#include "runtime/base/error.h"
#include "runtime/base/parallel.h"
#include "tests/gptq/statistics/gptq_samples.h"
#include "tests/runtime/base/error_matcher.h"

namespace thimble::slope_solver_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Steps near `step` that differ by row and column.
SlopeGrid varied_grid(int64_t rows, int64_t columns, int trellis_bits, double rate_weight, int step = -64) {
  SlopeGrid grid{trellis_bits, rate_weight, {}, {}};
  for (int64_t r = 0; r < rows; ++r) grid.row_steps.push_back(static_cast<int16_t>(step + r * 29 % 61));
  for (int64_t k = 0; k < columns; ++k) grid.column_steps.push_back(static_cast<int16_t>(k * 17 % 83 - 41));
  return grid;
}

Matrix dequantized(const SteppedCodes& codes) {
  const auto rows = static_cast<int64_t>(codes.row_steps.size()),
             columns = static_cast<int64_t>(codes.column_steps.size());
  return Matrix(dequantize(QuantizedTensor{"matrix", {rows, columns}, codes}), rows, columns);
}

// (w - w') H (w - w')^T of one row.
double row_loss(const Matrix& weights, const Matrix& found, const MatrixF64& hessian, int64_t r) {
  double loss = 0;
  for (int64_t i = 0; i < weights.cols(); ++i)
    for (int64_t j = 0; j < weights.cols(); ++j)
      loss += (double{weights(r, i)} - found(r, i)) * hessian(i, j) * (double{weights(r, j)} - found(r, j));
  return loss;
}

// The levels of one column of targets, each path from state 0 at the segment's first row.
std::vector<int32_t> column_levels(const std::vector<double>& targets, int64_t k, const SlopeGrid& grid,
                                   const WeightScales& scales) {
  const size_t rows = targets.size();
  const auto column = static_cast<size_t>(k);
  std::vector<double> in_levels;
  std::vector<uint8_t> classes;
  for (size_t r = 0; r < rows; ++r) {
    in_levels.push_back(targets[r] / step_size(grid.row_steps[r]) / step_size(grid.column_steps[column]));
    const int step = grid.row_steps[r] + grid.column_steps[column];
    classes.push_back(rate_class(scales.rows[r] + scales.columns[column] - static_cast<float>(step) / kStepsPerOctave));
  }
  std::vector<int32_t> levels(rows);
  if (grid.trellis_bits == 0 && grid.rate_weight == 0) {
    for (size_t r = 0; r < rows; ++r) levels[r] = 2 * static_cast<int32_t>(std::nearbyint(in_levels[r] / 2));
    return levels;
  }
  for (size_t first = 0; first < rows; first += kTrellisRows) {
    const size_t count = std::min<size_t>(kTrellisRows, rows - first);
    TrellisQuantizer quantizer(Trellis(grid.trellis_bits), grid.rate_weight, kTrellisRows);
    quantizer.quantize(std::span(in_levels).subspan(first, count), std::span(classes).subspan(first, count),
                       std::span(levels).subspan(first, count));
  }
  return levels;
}

// Optimal brain quantization in the order of the largest diagonal (arXiv 2210.17323, eq. 2): after each column, the
// Hessian of the remaining columns is inverted afresh. No Cholesky, no blocks, no permutation of the weights.
std::vector<int32_t> naive_codes(const Matrix& weights, const MatrixF64& hessian, const SlopeGrid& grid) {
  const int64_t rows = weights.rows(), columns = weights.cols();
  const WeightScales scales = fit_weight_scales(weights);
  std::vector<int32_t> codes(static_cast<size_t>(rows * columns));
  MatrixF64 w(rows, columns);
  std::ranges::copy(weights.values(), w.values().begin());
  std::vector<int64_t> remaining;
  for (int64_t k = 0; k < columns; ++k) remaining.push_back(k);
  while (!remaining.empty()) {
    const auto n = static_cast<int64_t>(remaining.size());
    const auto q =
        std::ranges::max_element(remaining, {}, [&](int64_t k) { return hessian(k, k); }) - remaining.begin();
    const int64_t column = remaining[static_cast<size_t>(q)];
    MatrixF64 left(n, n);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j)
        left(i, j) = hessian(remaining[static_cast<size_t>(i)], remaining[static_cast<size_t>(j)]);
    left = inverse(left);
    std::vector<double> targets;
    for (int64_t r = 0; r < rows; ++r) targets.push_back(w(r, column));
    const std::vector<int32_t> levels = column_levels(targets, column, grid, scales);
    for (int64_t r = 0; r < rows; ++r) {
      const auto row = static_cast<size_t>(r);
      codes[static_cast<size_t>(r * columns + column)] = levels[row] >> 1;
      const float value = static_cast<float>(levels[row]) * step_size(grid.row_steps[row]) *
                          step_size(grid.column_steps[static_cast<size_t>(column)]);
      const double error = (w(r, column) - value) / left(q, q);
      for (int64_t j = 0; j < n; ++j) w(r, remaining[static_cast<size_t>(j)]) -= error * left(q, j);
    }
    remaining.erase(remaining.begin() + q);
  }
  return codes;
}

struct Case {
  int64_t rows, columns;
  int trellis_bits;
  double rate_weight;
};

class SlopeShapes : public ::testing::TestWithParam<Case> {};

TEST_P(SlopeShapes, MatchesNaiveGptqAndReportsItsLoss) {
  const auto [rows, columns, trellis_bits, rate_weight] = GetParam();
  const Matrix weights = random_matrix(rows, columns, 11, 2);
  const SymmetricMatrix hessian = correlated_hessian(columns, 12);
  const HessianFactor factor = factor_hessian(hessian, 0.02, "layer");
  const MatrixF64 damped = damped_square(hessian, 0.02);
  const SlopeGrid grid = varied_grid(rows, columns, trellis_bits, rate_weight);
  std::vector<double> row_weights;
  for (int64_t r = 0; r < rows; ++r) row_weights.push_back(0.5 + static_cast<double>(r % 3));

  const SlopeResult found = solve_slope(weights, &factor, grid, row_weights, "layer");
  EXPECT_EQ(found.codes.codes, naive_codes(weights, damped, grid));
  EXPECT_EQ(found.codes.trellis_bits, trellis_bits);
  EXPECT_EQ(found.codes.row_steps, grid.row_steps);
  EXPECT_EQ(found.codes.column_steps, grid.column_steps);

  const Matrix values = dequantized(found.codes);
  double loss = 0, weighted = 0, squared = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const double of_row = row_loss(weights, values, damped, r);
    loss += of_row;
    weighted += of_row * row_weights[static_cast<size_t>(r)];
    for (int64_t k = 0; k < columns; ++k) squared += std::pow(double{weights(r, k)} - values(r, k), 2);
  }
  EXPECT_NEAR(found.report.weighted_loss, loss, 1e-9 * loss);
  EXPECT_NEAR(found.report.row_weighted_loss, weighted, 1e-9 * weighted);
  EXPECT_NEAR(found.report.weight_mse, squared / static_cast<double>(rows * columns), 1e-9 * squared);
  EXPECT_EQ(found.report.damping, 0.02);
}

INSTANTIATE_TEST_SUITE_P(Shapes, SlopeShapes,
                         ::testing::Values(Case{1, 1, 0, 0}, Case{1, 40, 0, 0}, Case{9, 1, 0, 0}, Case{37, 141, 0, 0},
                                           Case{37, 50, 0, 0.4}, Case{1, 1, 3, 0.3}, Case{1, 40, 8, 0.3},
                                           Case{70, 33, 2, 0}, Case{200, 16, 6, 0.35}, Case{513, 17, 3, 0.35},
                                           Case{1030, 5, 4, 0.2}));

TEST(SlopeSolver, SegmentsDoNotDependOnEachOther) {
  const Matrix weights = random_matrix(1100, 70, 1);
  const HessianFactor factor = factor_hessian(correlated_hessian(70, 2), 0.01, "layer");
  for (int bits : {0, 4}) {
    const SlopeGrid grid = varied_grid(1100, 70, bits, 0);
    const SlopeResult all = solve_slope(weights, &factor, grid, {}, "layer");
    for (int64_t first : {int64_t{0}, kTrellisRows, 2 * kTrellisRows}) {
      const int64_t count = std::min<int64_t>(kTrellisRows, 1100 - first);
      SlopeGrid part = grid;
      part.row_steps = {grid.row_steps.begin() + first, grid.row_steps.begin() + first + count};
      const SlopeResult alone = solve_slope(weights.view().block_rows(first, count), &factor, part, {}, "layer");
      std::vector<int32_t> expected(static_cast<size_t>(count * 70));
      all.codes.codes.load(static_cast<size_t>(first * 70), expected);
      EXPECT_EQ(alone.codes.codes, CodeArray(expected));
    }
  }
}

TEST(SlopeSolver, SameForAnyThreadCount) {
  const Matrix weights = random_matrix(1100, 260, 1, 2);
  const HessianFactor factor = factor_hessian(correlated_hessian(260, 2), 0.01, "layer");
  for (const HessianFactor* used : {&factor, static_cast<const HessianFactor*>(nullptr)}) {
    std::vector<SlopeResult> found;
    for (int threads : {1, 4}) {
      ThreadLimit limit(threads);
      found.push_back(solve_slope(weights, used, varied_grid(1100, 260, 5, 0.3), {}, "layer"));
    }
    EXPECT_EQ(found[0].codes, found[1].codes);
    EXPECT_EQ(found[0].report.weight_mse, found[1].report.weight_mse);
    EXPECT_EQ(found[0].report.weighted_loss, found[1].report.weighted_loss);
    EXPECT_EQ(found[0].report.estimated_bits, found[1].report.estimated_bits);
  }
}

TEST(SlopeSolver, WithoutHessianIsTheIdentity) {
  const Matrix weights = random_matrix(600, 150, 3);
  SymmetricMatrix identity(150);
  for (int64_t k = 0; k < 150; ++k) identity.lower_row(k)[k] = 1;
  const HessianFactor factor = factor_hessian(identity, 0, "layer");
  for (int bits : {0, 3}) {
    const SlopeGrid grid = varied_grid(600, 150, bits, 0.3);
    const std::vector<double> row_weights(600, 2.0);
    const SlopeResult with = solve_slope(weights, &factor, grid, row_weights, "layer");
    const SlopeResult without = solve_slope(weights, nullptr, grid, row_weights, "layer");
    EXPECT_EQ(with.codes, without.codes);
    EXPECT_NEAR(with.report.weighted_loss, without.report.weighted_loss, 1e-9 * with.report.weighted_loss);
    EXPECT_NEAR(without.report.row_weighted_loss, 2 * without.report.weighted_loss, 1e-9 * with.report.weighted_loss);
    EXPECT_NEAR(without.report.weighted_loss, without.report.weight_mse * 600 * 150, 1e-9 * with.report.weighted_loss);
    EXPECT_NEAR(with.report.estimated_bits, without.report.estimated_bits, 1e-9 * with.report.estimated_bits);
  }
}

TEST(SlopeSolver, DeadColumnsGetCodeZeroAndDisturbNobody) {
  SymmetricMatrix small = correlated_hessian(6, 3), hessian(8);
  Matrix small_weights = random_matrix(600, 6, 4), weights(600, 8);
  const std::vector<int64_t> live = {0, 2, 3, 4, 6, 7};  // 1 and 5 are dead
  for (size_t i = 0; i < live.size(); ++i) {
    for (size_t j = 0; j <= i; ++j)
      hessian.lower_row(live[i])[live[j]] = small(static_cast<int64_t>(i), static_cast<int64_t>(j));
    for (int64_t r = 0; r < 600; ++r) weights(r, live[i]) = small_weights(r, static_cast<int64_t>(i));
  }
  for (int64_t r = 0; r < 600; ++r) weights(r, 1) = 7, weights(r, 5) = -0.9F;
  for (int bits : {0, 2, 6}) {
    SlopeGrid grid = varied_grid(600, 8, bits, 0), small_grid = grid;
    small_grid.column_steps.clear();
    for (int64_t k : live) small_grid.column_steps.push_back(grid.column_steps[static_cast<size_t>(k)]);
    // Equal added damping: 0.01 of a mean over 8 columns against 0.0075 of one over 6.
    const HessianFactor with = factor_hessian(hessian, 0.01, "layer"), without = factor_hessian(small, 0.0075, "layer");
    const SlopeResult dead = solve_slope(weights, &with, grid, {}, "layer");
    const SlopeResult alive = solve_slope(small_weights, &without, small_grid, {}, "layer");
    EXPECT_EQ(dead.report.dead_columns, (std::vector<int64_t>{1, 5}));
    EXPECT_NEAR(dead.report.weighted_loss, alive.report.weighted_loss, 1e-9 * alive.report.weighted_loss);
    for (size_t r = 0; r < 600; ++r) {
      EXPECT_EQ(dead.codes.codes[r * 8 + 1], 0);
      EXPECT_EQ(dead.codes.codes[r * 8 + 5], 0);
      for (size_t i = 0; i < live.size(); ++i)
        EXPECT_EQ(dead.codes.codes[r * 8 + static_cast<size_t>(live[i])], alive.codes.codes[r * 6 + i]);
    }
    const Matrix values = dequantized(dead.codes);
    for (int64_t r = 0; r < 600; ++r) EXPECT_EQ(values(r, 1), 0);
  }
}

TEST(SlopeSolver, MoreStatesAndRateWeightPay) {
  const Matrix weights = random_matrix(512, 200, 5);
  const HessianFactor factor = factor_hessian(correlated_hessian(200, 6), 0.01, "layer");
  // Steps as the factor has them: equal slope.
  auto solved = [&](int bits, double rate_weight, double c) {
    SlopeGrid grid{bits, rate_weight, std::vector<int16_t>(512), std::vector<int16_t>(200)};
    for (int64_t i = 0; i < 200; ++i)
      grid.column_steps[static_cast<size_t>(factor.order[static_cast<size_t>(i)])] =
          static_cast<int16_t>(std::lround(kStepsPerOctave * std::log2(c * factor.upper(i, i))));
    return solve_slope(weights, &factor, grid, {}, "layer").report;
  };
  const SlopeReport scalar = solved(0, 0, 0.5), rounded = solved(0, 0.3, 0.5);
  EXPECT_LT(rounded.estimated_bits, scalar.estimated_bits);
  EXPECT_GT(rounded.weighted_loss, scalar.weighted_loss);
  // Bits per weight plus log2 of the root of the loss: what steps cannot change at high rates.
  auto bits_at_loss_1 = [](const SlopeReport& r) {
    return r.estimated_bits / (512 * 200) + 0.5 * std::log2(r.weighted_loss);
  };
  EXPECT_LT(bits_at_loss_1(solved(3, 0.2, 0.3)), bits_at_loss_1(scalar) - 0.1);
  EXPECT_LT(bits_at_loss_1(solved(6, 0.2, 0.3)), bits_at_loss_1(solved(3, 0.2, 0.3)) - 0.015);
}

TEST(SlopeSolver, EstimatesBitsOfGaussianWeights) {
  const Matrix weights = random_matrix(512, 128, 9);
  for (int bits : {0, 3, 8}) {
    const SlopeGrid grid{bits, 0.2, std::vector<int16_t>(512, -64), std::vector<int16_t>(128)};
    const SlopeResult found = solve_slope(weights, nullptr, grid, {}, "layer");
    const Trellis trellis(bits);
    std::array<std::map<int32_t, double>, 2> counts;
    std::array<double, 2> totals{};
    for (size_t k = 0; k < 128; ++k) {
      uint32_t state = 0;
      for (size_t r = 0; r < 512; ++r) {
        const auto set = static_cast<size_t>(Trellis::set(state));
        const int32_t code = found.codes.codes[r * 128 + k];
        ++counts[set][code];
        ++totals[set];
        state = trellis.next(state, code);
      }
    }
    double entropy = 0;
    for (size_t set : {0, 1})
      for (auto [code, count] : counts[set]) entropy += count * std::log2(totals[set] / count);
    EXPECT_NEAR(found.report.estimated_bits, entropy, 0.01 * entropy) << bits;
  }
}

TEST(SlopeSolver, ZerosAndOneOutlier) {
  const HessianFactor factor = factor_hessian(correlated_hessian(50, 1), 0.01, "layer");
  for (int bits : {0, 3}) {
    Matrix weights(520, 50);
    const SlopeResult zeros = solve_slope(weights, &factor, varied_grid(520, 50, bits, 0.3), {}, "layer");
    EXPECT_EQ(zeros.codes.codes, std::vector<int32_t>(520 * 50, 0));
    EXPECT_EQ(zeros.report.weighted_loss, 0);
    weights(3, 7) = 60000;
    const SlopeResult outlier = solve_slope(weights, &factor, varied_grid(520, 50, bits, 0.3), {}, "layer");
    EXPECT_NEAR(dequantized(outlier.codes)(3, 7), 60000, 4);
  }
}

TEST(SlopeSolver, HugeAndTinyWeightsKeepCodesInRange) {
  const HessianFactor factor = factor_hessian(correlated_hessian(20, 1), 0.01, "layer");
  constexpr float kMost = std::numeric_limits<float>::max(), kLeast = std::numeric_limits<float>::denorm_min();
  for (int bits : {0, 3, 8})
    for (int step : {-kMaxStep, 0, kMaxStep}) {
      Matrix weights = random_matrix(30, 20, 3);
      weights(1, 1) = kMost;
      weights(2, 2) = -kMost;
      weights(3, 3) = kLeast;
      const auto all = static_cast<int16_t>(step);
      const SlopeGrid grid{bits, 0.3, std::vector<int16_t>(30, all), std::vector<int16_t>(20, all)};
      const SlopeResult found = solve_slope(weights, &factor, grid, {}, "layer");
      for (size_t i = 0; i < found.codes.codes.size(); ++i) ASSERT_LE(std::abs(found.codes.codes[i]), kMaxSteppedCode);
      const Matrix values = dequantized(found.codes);
      for (float value : values.values()) ASSERT_TRUE(std::isfinite(value));
      EXPECT_TRUE(std::isfinite(found.report.weighted_loss));
      EXPECT_TRUE(std::isfinite(found.report.estimated_bits));
    }
}

TEST(SlopeSolver, NothingToSolve) {
  const SlopeResult none = solve_slope(Matrix(0, 5), nullptr, {3, 0.3, {}, std::vector<int16_t>(5)}, {}, "layer");
  EXPECT_TRUE(none.codes.codes.empty());
  EXPECT_EQ(none.report.weight_mse, 0);
  EXPECT_EQ(none.report.estimated_bits, 0);
  const SlopeResult thin = solve_slope(Matrix(5, 0), nullptr, {3, 0.3, std::vector<int16_t>(5), {}}, {}, "layer");
  EXPECT_TRUE(thin.codes.codes.empty());
}

TEST(SlopeSolver, RefusesWeightsThatAreNotFinite) {
  const HessianFactor factor = factor_hessian(correlated_hessian(20, 1), 0.01, "layer");
  for (auto [bad, text] : {std::pair(kInfinity, " is inf"), std::pair(-kInfinity, " is -inf"),
                           std::pair(std::numeric_limits<float>::quiet_NaN(), " is nan")}) {
    Matrix weights = random_matrix(600, 20, 3);
    weights(555, 4) = bad;
    for (const HessianFactor* used : {&factor, static_cast<const HessianFactor*>(nullptr)})
      EXPECT_EQ(bad_input_message([&] { solve_slope(weights, used, varied_grid(600, 20, 3, 0.3), {}, "blocks.0.up"); }),
                std::string("tensor 'blocks.0.up': weight (555, 4)") + text + ", must be finite");
  }
}

TEST(SlopeSolver, RefusesErrorsBeyondFloat64) {
  HessianFactor factor = factor_hessian(diagonal_hessian({3, 2, 1}), 0.01, "layer");
  factor.upper(0, 1) = 1e200;
  factor.upper(1, 2) = 1e200;
  EXPECT_THAT(bad_input_message(
                  [&] { solve_slope(random_matrix(2, 3, 1), &factor, varied_grid(2, 3, 0, 0), {}, "blocks.0.up"); }),
              ::testing::AllOf(::testing::HasSubstr("tensor 'blocks.0.up': weight (0, 2) is"),
                               ::testing::HasSubstr("out of float64's range")));
}

TEST(SlopeSolver, RefusesArgumentsThatDoNotFit) {
  const Matrix weights = random_matrix(4, 3, 1);
  const HessianFactor factor = factor_hessian(diagonal_hessian({1, 2}), 0.01, "layer");
  const SlopeGrid good = varied_grid(4, 3, 3, 0.3);
  auto refuses = [&](const SlopeGrid& grid, const HessianFactor* used = nullptr, std::vector<double> row_weights = {}) {
    expect_error<Error>([&] { solve_slope(weights, used, grid, row_weights, "blocks.0.up"); }, {"'blocks.0.up'"});
  };
  refuses(good, &factor);
  refuses(good, nullptr, {1, 2});
  SlopeGrid bad = good;
  bad.row_steps.pop_back();
  refuses(bad);
  bad = good;
  bad.column_steps.push_back(0);
  refuses(bad);
  bad = good;
  bad.column_steps[1] = kMaxStep + 1;
  refuses(bad);
  for (int bits : {-1, 1, kMaxTrellisBits + 1}) {
    bad = good;
    bad.trellis_bits = bits;
    refuses(bad);
  }
  for (double rate_weight : {-0.1, 2 * kMaxRateWeight, std::numeric_limits<double>::quiet_NaN()}) {
    bad = good;
    bad.rate_weight = rate_weight;
    refuses(bad);
  }
}

}  // namespace
}  // namespace thimble::slope_solver_test
