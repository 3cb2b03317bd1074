// scale_fit.h: chooses what the weight coder transmits besides codes: a scale class for every row, a shift of it for
// every column, and the shape of the density. Alternates between rows and columns, each time taking the value that
// costs least: bits of the codes plus bits of the value itself. Integers alone, so every machine makes the same choice.
// R = rows, K = columns.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "packer/rans/scale_tables.h"

namespace thimble {

// Larger levels are stored as this, plus their set: no table reaches so far.
constexpr uint32_t kLevelCap = 512;
static_assert(kLevelCap / 2 > max_reach(2));

// What the fit sees of codes: of each its magnitude, and with a trellis (runtime/codes/trellis.h) its set.
struct CodeLevels {
  uint32_t sets = 1;                 // 2 with a trellis
  uint32_t largest_code = 0;         // largest code_magnitude()
  std::vector<uint16_t> magnitudes;  // (R, K) sets * code_magnitude() + set, at most kLevelCap + set
};

// codes: (rows, columns) row-major, beginning where the trellis does. trellis_bits: 0 for none.
CodeLevels code_levels(std::span<const int32_t> codes, uint64_t rows, uint64_t columns, int trellis_bits);

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
};

inline int class_of(int row_value, int column_value) {
  const int sum = row_value + column_value;
  return sum < 0 ? 0 : sum < kScaleClasses ? sum : kScaleClasses - 1;
}

// Of the tables for these levels; neither rows nor columns are 0.
ScaleFit fit_scales(const CodeLevels& levels, uint64_t rows, uint64_t columns);

}  // namespace thimble
