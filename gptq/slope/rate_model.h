// rate_model.h: what an entropy coder will charge for a code, known before there are codes: rounding weighs it against
// the error. As in packer's weight coder, a weight is a sample of a density whose deviation is that of its row times
// that of its column; a code costs -log2 of the mass of its interval.
// In: weights (R, K), steps.  Out: a class for every code, bits for every level of a class.
// R = output rows, K = input columns.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/tensor/host_device.h"
#include "runtime/tensor/matrix.h"

namespace thimble {

// log2 of factors a (R) and b (K) such that weight (r, k) is a sample of deviation a_r b_k: the most likely ones for
// Gaussian samples, by alternating between rows and columns. Of rows and columns of zeros kSmallestScale.
struct WeightScales {
  std::vector<float> rows;     // (R)
  std::vector<float> columns;  // (K), around 0
};
constexpr float kSmallestScale = -256;

// Weights must be finite.
WeightScales fit_weight_scales(ConstMatrixView weights);

// Classes are quarter octaves of the deviation in levels (runtime/codes/trellis.h): 1/4 to 256.
constexpr int kRateClasses = 41;
// From log2 of the deviation.
THIMBLE_HOST_DEVICE inline uint8_t rate_class(float log2_deviation) {
  const float position = 4 * log2_deviation + 8.5F, last = kRateClasses - 0.5F;
  return static_cast<uint8_t>(position < 0 ? 0 : position > last ? last : position);
}

class RateTable {
 public:
  static constexpr int32_t kLevels = 1024;  // those beyond cost as much as the last

  RateTable();

  // Of a code of either set: the mass of the two levels' width around its level. Falls steadily towards level 0;
  // finite for any level.
  float bits(int rate_class, int32_t level) const { return row(rate_class)[column(level)]; }
  // The bits of one class, and where a level's are.
  const float* row(int rate_class) const { return bits_[static_cast<size_t>(rate_class)].data(); }
  THIMBLE_HOST_DEVICE static constexpr int32_t column(int32_t level) {
    return level <= -kLevels || level >= kLevels ? kLevels - 1 : level < 0 ? -level : level;
  }
  // The most that a level costs.
  float most_bits() const { return most_bits_; }
  // Row after row.
  std::span<const float> values() const { return {row(0), static_cast<size_t>(kRateClasses) * kLevels}; }

 private:
  std::array<std::array<float, kLevels>, kRateClasses> bits_;
  float most_bits_;
};

// The one of this program.
const RateTable& rate_table();

// About how many bits the codes of matrices take at any c (step_plan.h), before one of them is known: where a search
// for a byte budget starts. A weight of deviation s times its step takes about 1/2 log2(1 + 2 pi e s^2) bits: 1/2
// log2(2 pi e s^2), the entropy of a Gaussian in steps, when s is large, and none when it is small.
class SizeModel {
 public:
  // Weights of deviation 2^(rows[r] + columns[k]) steps at c = 1, (R) and (K).
  void add(std::span<const double> rows, std::span<const double> columns);

  void add(const SizeModel& other);

  // Of all weights added. Falls with log2_c.
  double bits(double log2_c) const;
  // The log2_c with this many bits (found by bisection; the nearest that there is).
  double log2_c_for(double bits) const;

 private:
  static constexpr int kBinsPerOctave = 16;
  static constexpr int kOctaves = 512;  // deviations of 2^-256 to 2^256, and as many of c
  std::array<int64_t, static_cast<size_t>(kBinsPerOctave* kOctaves)> counts_{};
};

}  // namespace thimble
