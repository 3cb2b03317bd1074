// scale_fit.h: chooses what the weight coder transmits besides codes: a scale class for every row, a shift of it for
// every column, and the shape of the density. Alternates between rows and columns, each time taking the value that
// costs least: bits of the codes plus bits of the value itself. Integers alone, so every machine makes the same choice.
// R = rows, K = columns.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "packer/rans/scale_tables.h"
#include "packer/rans/trellis_levels.h"

namespace thimble {

// Bits are counted in units of 1 / kBitUnits.
constexpr int kBitUnits = 1024;

// One side of the matrix: a value per row (or column), coded as its distance from `center` with the table of class
// `spread` (shape 0, magnitudes up to max_reach(1)).
struct AxisScales {
  std::vector<int8_t> values;
  int center = 0;
  int spread = 0;
};

// Code (r, k) has class clamp(rows.values[r] + columns.values[k], 0, kScaleClasses - 1).
struct ScaleFit {
  int shape = 0;
  AxisScales rows;     // (R) values 0..kScaleClasses - 1
  AxisScales columns;  // (K) values -(kScaleClasses - 1)..kScaleClasses - 1
  // Ideal lengths in 1 / kBitUnits bits, without what escaped codes take beyond their symbol.
  uint64_t code_bits = 0;
  uint64_t axis_bits = 0;  // of rows and columns
};

inline int class_of(int row_value, int column_value) {
  const int sum = row_value + column_value;
  return sum < 0 ? 0 : sum < kScaleClasses ? sum : kScaleClasses - 1;
}

// codes: (rows, columns) row-major, neither 0; magnitudes at most max_magnitude.
template <typename Code>
ScaleFit fit_scales(std::span<const Code> codes, uint64_t rows, uint64_t columns, uint32_t max_magnitude);

// The same with a trellis, for the tables of both sets.
ScaleFit fit_scales(const TrellisLevels& levels, uint64_t rows, uint64_t columns);

}  // namespace thimble
