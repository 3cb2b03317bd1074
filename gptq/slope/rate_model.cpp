// rate_model.cpp: see rate_model.h.
#include "gptq/slope/rate_model.h"

#include <numbers>
#include <numeric>

#include "runtime/base/parallel.h"

namespace thimble {
namespace {

constexpr int kFitPasses = 4;  // over rows and columns
constexpr int64_t kLeastPartRows = 32, kMostParts = 64;

// A coder's tables give no code less than this probability; what is rarer costs these bits and those of an
// Exp-Golomb code.
constexpr double kTableBits = 12;

float log2_scale(double mean_square) {
  return mean_square > 0 ? static_cast<float>(0.5 * std::log2(mean_square)) : kSmallestScale;
}

// Of a Gaussian of deviation 1 beyond x.
double tail(double x) { return 0.5 * std::erfc(x / std::numbers::sqrt2); }

// Of levels in (level - 1, level + 1).
double interval_bits(double deviation, double level) {
  return -std::log2(tail((level - 1) / deviation) - tail((level + 1) / deviation));
}

double inverse_or_zero(double value) { return value > 0 ? 1 / value : 0; }

// sum of w_k^2 x_k, in as many sums as fill a vector.
double weighted_squares(const float* w, std::span<const double> x) {
  constexpr size_t kSums = 8;
  std::array<double, kSums> sums{};
  size_t k = 0;
  for (; k + kSums <= x.size(); k += kSums)
    for (size_t i = 0; i < kSums; ++i) sums[i] += double{w[k + i]} * w[k + i] * x[k + i];
  for (; k < x.size(); ++k) sums[k % kSums] += double{w[k]} * w[k] * x[k];
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

}  // namespace

WeightScales fit_weight_scales(ConstMatrixView weights) {
  const auto rows = static_cast<size_t>(weights.rows), columns = static_cast<size_t>(weights.cols);
  std::vector<double> row_squares(rows), column_squares(columns, 1.0);  // a^2 and b^2
  // Sums over rows are sums of parts, so many that threads have enough of them.
  const int64_t part_rows = std::max(kLeastPartRows, int64_t{divide_up(weights.rows, kMostParts)});
  std::vector<std::vector<double>> column_sums(static_cast<size_t>(divide_up(weights.rows, part_rows)));
  for (int pass = 0; pass < kFitPasses; ++pass) {
    std::vector<double> column_inverses;
    for (double square : column_squares) column_inverses.push_back(inverse_or_zero(square));
    parallel_chunks(weights.rows, part_rows, [&](int64_t first, int64_t last) {
      std::vector<double>& sums = column_sums[static_cast<size_t>(first / part_rows)];
      sums.assign(columns, 0);
      for (auto r = static_cast<size_t>(first); r < static_cast<size_t>(last); ++r) {
        const float* w = weights.row(static_cast<int64_t>(r));
        row_squares[r] = weighted_squares(w, column_inverses) / static_cast<double>(columns);
        const double row_inverse = inverse_or_zero(row_squares[r]);
        for (size_t k = 0; k < columns; ++k) sums[k] += double{w[k]} * w[k] * row_inverse;
      }
    });
    for (size_t k = 0; k < columns; ++k) {
      double sum = 0;
      for (const std::vector<double>& sums : column_sums) sum += sums[k];
      column_squares[k] = sum / static_cast<double>(rows);
    }
  }
  WeightScales scales;
  for (double square : row_squares) scales.rows.push_back(log2_scale(square));
  for (double square : column_squares) scales.columns.push_back(log2_scale(square));
  return scales;
}

RateTable::RateTable() {
  for (int c = 0; c < kRateClasses; ++c) {
    const double deviation = std::exp2((c - 8) / 4.0);
    std::array<float, kLevels>& row = bits_[static_cast<size_t>(c)];
    int32_t reach = kLevels;
    for (int32_t level = 0; level < kLevels; ++level) {
      const auto x = static_cast<double>(level);
      const double bits = interval_bits(deviation, x);
      if (level > 0 && reach == kLevels && !(bits < kTableBits)) reach = level;
      const double beyond = static_cast<double>(level - reach) / 2 + 1;  // in codes
      row[static_cast<size_t>(level)] =
          static_cast<float>(level < reach ? bits : kTableBits + 1 + 2 * std::log2(beyond));
    }
  }
  most_bits_ = *std::ranges::max_element(values());
}

const RateTable& rate_table() {
  static const RateTable kTable;
  return kTable;
}

void SizeModel::add(std::span<const double> rows, std::span<const double> columns) {
  for (double row : rows)
    for (double column : columns) {
      double bin = (row + column + kOctaves / 2.0) * kBinsPerOctave;
      ++counts_[static_cast<size_t>(std::clamp(bin, 0.0, static_cast<double>(counts_.size() - 1)))];
    }
}

void SizeModel::add(const SizeModel& other) {
  for (size_t bin = 0; bin < counts_.size(); ++bin) counts_[bin] += other.counts_[bin];
}

double SizeModel::bits(double log2_c) const {
  constexpr double kEntropy = 2 * std::numbers::pi * std::numbers::e;
  double bits = 0;
  for (size_t bin = 0; bin < counts_.size(); ++bin) {
    if (counts_[bin] == 0) continue;
    double log2_deviation = (static_cast<double>(bin) + 0.5) / kBinsPerOctave - kOctaves / 2.0 - log2_c;
    bits += static_cast<double>(counts_[bin]) * std::log2(1 + kEntropy * std::exp2(2 * log2_deviation)) / 2;
  }
  return bits;
}

double SizeModel::log2_c_for(double target) const {
  double low = -kOctaves / 2.0, high = kOctaves / 2.0;  // more bits at `low`
  for (int i = 0; i < 52; ++i) {
    double middle = (low + high) / 2;
    (bits(middle) > target ? low : high) = middle;
  }
  return high;
}

}  // namespace thimble
