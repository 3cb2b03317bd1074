// size_model.cpp: see size_model.h.
#include "gptq/slope/size_model.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace thimble {

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
