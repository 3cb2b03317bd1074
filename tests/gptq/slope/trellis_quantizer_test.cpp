// trellis_quantizer_test.cpp: paths against all paths, against a Viterbi written down naively, and against the
// rate-distortion bound.
#include "gptq/slope/trellis_quantizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>

#include "runtime/codes/quantized_model.h"

namespace thimble::trellis_quantizer_test {
namespace {

constexpr int kAllBits[] = {0, 2, 3, 4, 5, 6, 7, 8};

struct Column {
  std::vector<double> targets;
  std::vector<uint8_t> classes;
};

Column random_column(size_t rows, uint32_t seed, double deviation = 3) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, deviation);
  Column column;
  for (size_t r = 0; r < rows; ++r) {
    column.targets.push_back(normal(random));
    column.classes.push_back(static_cast<uint8_t>(random() % kRateClasses));
  }
  return column;
}

std::vector<int32_t> quantize(const Column& column, int bits, double rate_weight) {
  std::vector<int32_t> levels(column.targets.size());
  TrellisQuantizer(Trellis(bits), rate_weight, static_cast<int64_t>(levels.size()))
      .quantize(column.targets, column.classes, levels);
  return levels;
}

double row_cost(const Column& column, size_t r, int32_t level, double rate_weight) {
  const double error = column.targets[r] - static_cast<double>(level);
  return error * error + rate_weight * rate_table().bits(column.classes[r], level);
}

// Of levels that must be a path of the trellis, of codes that a SteppedCodes may hold.
double path_cost(const Column& column, int bits, double rate_weight, const std::vector<int32_t>& levels) {
  const Trellis trellis(bits);
  uint32_t state = 0;
  double cost = 0;
  for (size_t r = 0; r < levels.size(); ++r) {
    const int32_t code = levels[r] >> 1;
    EXPECT_EQ(Trellis::level(state, code), levels[r]) << "row " << r;
    EXPECT_LE(std::abs(code), kMaxSteppedCode);
    cost += row_cost(column, r, levels[r], rate_weight);
    state = trellis.next(state, code);
  }
  return cost;
}

int32_t level_of(uint32_t state, int code) { return static_cast<int32_t>(Trellis::level(state, code)); }

// All sequences of codes in [-reach, reach] from row r on.
double least_cost(const Column& column, const Trellis& trellis, double rate_weight, int reach, size_t r = 0,
                  uint32_t state = 0) {
  if (r == column.targets.size()) return 0;
  double least = std::numeric_limits<double>::infinity();
  for (int code = -reach; code <= reach; ++code)
    least = std::min(least, row_cost(column, r, level_of(state, code), rate_weight) +
                                least_cost(column, trellis, rate_weight, reach, r + 1, trellis.next(state, code)));
  return least;
}

// The same, merging paths that meet in a state; float64.
double naive_viterbi_cost(const Column& column, const Trellis& trellis, double rate_weight, int reach) {
  std::map<uint32_t, double> costs = {{0, 0.0}};
  for (size_t r = 0; r < column.targets.size(); ++r) {
    std::map<uint32_t, double> next;
    for (auto [state, cost] : costs)
      for (int code = -reach; code <= reach; ++code) {
        const double total = cost + row_cost(column, r, level_of(state, code), rate_weight);
        auto [found, is_new] = next.emplace(trellis.next(state, code), total);
        if (!is_new) found->second = std::min(found->second, total);
      }
    costs = std::move(next);
  }
  return std::ranges::min_element(costs, {}, [](const auto& entry) { return entry.second; })->second;
}

TEST(TrellisQuantizer, FindsTheBestOfAllPaths) {
  for (int bits : kAllBits)
    for (double rate_weight : {0.0, 0.35, 3.0})
      for (uint32_t seed = 0; seed < 10; ++seed) {
        const Column column = random_column(1 + seed % 5, seed, 2);
        const double expected = least_cost(column, Trellis(bits), rate_weight, 5);
        const double found = path_cost(column, bits, rate_weight, quantize(column, bits, rate_weight));
        ASSERT_NEAR(found, expected, 1e-5 * expected + 1e-6) << bits << " " << rate_weight << " " << seed;
      }
}

// Of every number of rows around that of a group, in which paths from both ends meet elsewhere.
TEST(TrellisQuantizer, FindsTheBestWhereverPathsMeet) {
  for (int bits : kAllBits)
    for (size_t rows = 1; rows < 36; ++rows) {
      const Column column = random_column(rows, static_cast<uint32_t>(rows));
      const double expected = naive_viterbi_cost(column, Trellis(bits), 0.35, 10);
      const double found = path_cost(column, bits, 0.35, quantize(column, bits, 0.35));
      EXPECT_NEAR(found, expected, 1e-5 * expected + 1e-6) << bits << " " << rows;
    }
}

TEST(TrellisQuantizer, FindsTheBestOfLongPaths) {
  for (int bits : kAllBits)
    for (double rate_weight : {0.0, 0.35}) {
      const Column column = random_column(kTrellisRows, 5);
      const double expected = naive_viterbi_cost(column, Trellis(bits), rate_weight, 10);
      const double found = path_cost(column, bits, rate_weight, quantize(column, bits, rate_weight));
      EXPECT_NEAR(found, expected, 1e-5 * expected) << bits << " " << rate_weight;
    }
}

// A column whose every row costs the most that it may stays below what states cost that no path leads to; with twice
// the scale it need not.
TEST(TrellisQuantizer, CostsOfAColumnFit) {
  for (float rate_weight : {0.0F, 0.1F, 0.35F, 3.0F, 1e6F}) {
    const float scale = path_cost_scale(rate_weight), most = 4 + rate_weight * rate_table().most_bits();
    auto of_column = [&](float scaled) {
      return static_cast<double>(thimble::path_cost(most, scaled)) * (kTrellisRows + path_rows(kMaxTrellisBits));
    };
    EXPECT_LT(of_column(scale), kUnreachable) << rate_weight;
    EXPECT_GT(of_column(2.1F * scale), kUnreachable) << rate_weight;
    EXPECT_EQ(std::exp2(std::round(std::log2(scale))), scale);
  }
}

TEST(TrellisQuantizer, WithoutTrellisAndRateIsNearestRounding) {
  Column column = random_column(1000, 7, 50);
  const std::vector<int32_t> levels = quantize(column, 0, 0);
  for (size_t r = 0; r < levels.size(); ++r)
    EXPECT_EQ(levels[r], 2 * static_cast<int32_t>(std::lround(column.targets[r] / 2))) << column.targets[r];
  column = {{-1, 1, 3, 5, -3}, {0, 0, 0, 0, 0}};
  EXPECT_EQ(quantize(column, 0, 0), (std::vector<int32_t>{0, 0, 4, 4, -4})) << "ties go to even codes";
}

TEST(TrellisQuantizer, ScratchOfALongerColumnLeavesNoTrace) {
  TrellisQuantizer quantizer(Trellis(4), 0.3, 512);
  const Column longer = random_column(512, 1), shorter = random_column(9, 2);
  std::vector<int32_t> levels(512);
  quantizer.quantize(longer.targets, longer.classes, levels);
  levels.resize(9);
  quantizer.quantize(shorter.targets, shorter.classes, levels);
  EXPECT_EQ(levels, quantize(shorter, 4, 0.3));
  quantizer.quantize({}, {}, {});
}

TEST(TrellisQuantizer, ZerosStayInStateZero) {
  for (int bits : kAllBits)
    for (double rate_weight : {0.0, 0.35, 100.0}) {
      const Column zeros{std::vector<double>(kTrellisRows, 0.0), std::vector<uint8_t>(kTrellisRows, 40)};
      EXPECT_EQ(quantize(zeros, bits, rate_weight), std::vector<int32_t>(kTrellisRows, 0)) << bits;
    }
}

TEST(TrellisQuantizer, TargetsBeyondAllLevelsGetTheLargest) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (int bits : kAllBits)
    for (double huge : {1e8, 1e300, kInfinity}) {
      const Column column{{0.7, huge, -huge, 0.3, huge, -0.1}, {0, 8, 40, 3, 0, 10}};
      for (double rate_weight : {0.0, 0.35, kInfinity > huge ? 1e6 : 1.0}) {
        const std::vector<int32_t> levels = quantize(column, bits, rate_weight);
        path_cost(column, bits, rate_weight, levels);
        for (size_t r : {1, 4}) EXPECT_GT(levels[r], 2 * kMaxSteppedCode - 10) << bits << " " << rate_weight;
        EXPECT_LT(levels[2], -2 * kMaxSteppedCode + 10);
      }
    }
}

// Bits per sample of one column after another, by the histograms of both sets, less the rate-distortion function of the
// source at the same distortion.
double gap_to_bound(int bits, double deviation, double rate_weight) {
  const size_t columns = 250;
  std::map<std::pair<int, int>, double> counts;
  std::array<double, 2> set_counts{};
  double squared_error = 0;
  std::vector<int32_t> levels(kTrellisRows);
  TrellisQuantizer quantizer(Trellis(bits), rate_weight, kTrellisRows);
  const std::vector<uint8_t> classes(kTrellisRows, rate_class(static_cast<float>(std::log2(deviation))));
  for (size_t k = 0; k < columns; ++k) {
    const Column column = random_column(kTrellisRows, static_cast<uint32_t>(k), deviation);
    quantizer.quantize(column.targets, classes, levels);
    for (size_t r = 0; r < levels.size(); ++r) {
      ++counts[{levels[r] & 1, levels[r]}];
      ++set_counts[static_cast<size_t>(levels[r] & 1)];
      squared_error += std::pow(column.targets[r] - levels[r], 2);
    }
  }
  double code_bits = 0;
  for (const auto& [level, count] : counts)
    code_bits -= count * std::log2(count / set_counts[static_cast<size_t>(level.first)]);
  const auto samples = static_cast<double>(columns * kTrellisRows);
  return code_bits / samples - std::log2(deviation / std::sqrt(squared_error / samples));
}

TEST(TrellisQuantizer, NearsTheRateDistortionBoundOfAGaussian) {
  // 2.2 to 2.4 bits. A path that starts anew after 512 rows loses 0.006 bits against an endless one.
  const std::pair<int, double> cases[] = {{0, 0.270}, {3, 0.081}, {4, 0.073}, {5, 0.061},
                                          {6, 0.056}, {7, 0.049}, {8, 0.042}};
  for (auto [bits, most] : cases) {
    const double gap = gap_to_bound(bits, 2.3, 0.35);
    RecordProperty("gap_" + std::to_string(bits), std::to_string(gap));
    EXPECT_LT(gap, most) << bits;
    EXPECT_GT(gap, 0.02) << bits << ": better than theory allows";
  }
}

TEST(TrellisQuantizer, RateWeightPaysAtLowRates) {
  EXPECT_LT(gap_to_bound(0, 2, 0.4), gap_to_bound(0, 2, 0) - 0.03);
  EXPECT_LT(gap_to_bound(3, 1.2, 0.4), gap_to_bound(3, 1.2, 0) - 0.03);
}

}  // namespace
}  // namespace thimble::trellis_quantizer_test
