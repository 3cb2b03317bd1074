// sample_codes.h: codes like those of weight matrices, for tests and benchmarks of the weight coder.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "runtime/codes/trellis.h"

namespace thimble {

struct SampleCodes {
  uint64_t rows = 0;
  uint64_t columns = 0;
  std::vector<int32_t> codes;      // (rows, columns)
  std::vector<double> deviations;  // (rows, columns) of the normal variables that were rounded
};

// Normal codes of deviation scale * 2^(row_octaves * N(0, 1) + column_octaves * N(0, 1)).
inline SampleCodes normal_codes(uint64_t rows, uint64_t columns, double scale, double row_octaves,
                                double column_octaves) {
  std::mt19937 random(static_cast<unsigned>(rows * 31 + columns));
  std::normal_distribution<double> normal;
  std::vector<double> of_row(rows), of_column(columns);
  for (double& factor : of_row) factor = std::exp2(row_octaves * normal(random));
  for (double& factor : of_column) factor = std::exp2(column_octaves * normal(random));
  SampleCodes sample{rows, columns, {}, {}};
  for (uint64_t r = 0; r < rows; ++r)
    for (uint64_t k = 0; k < columns; ++k) {
      sample.deviations.push_back(scale * of_row[r] * of_column[k]);
      sample.codes.push_back(static_cast<int32_t>(std::lround(sample.deviations.back() * normal(random))));
    }
  return sample;
}

// The same variables, with a trellis: in set 1 codes are rounded down.
inline SampleCodes trellis_codes(uint64_t rows, uint64_t columns, double scale, double row_octaves,
                                 double column_octaves, int bits) {
  SampleCodes sample = normal_codes(rows, columns, scale, row_octaves, column_octaves);
  std::mt19937 random(static_cast<unsigned>(rows + columns * 31));
  std::normal_distribution<double> normal;
  const Trellis trellis(bits);
  for (uint64_t k = 0; k < columns; ++k) {
    uint32_t state = 0;
    for (uint64_t r = 0; r < rows; ++r) {
      if (r % static_cast<uint64_t>(kTrellisRows) == 0) state = 0;
      const uint64_t i = r * columns + k;
      const double value = sample.deviations[i] * normal(random);
      sample.codes[i] = static_cast<int32_t>(std::floor(value + (Trellis::set(state) == 0 ? 0.5 : 0.0)));
      state = trellis.next(state, sample.codes[i]);
    }
  }
  return sample;
}

}  // namespace thimble
