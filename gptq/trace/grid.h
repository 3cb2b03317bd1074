// grid.h: uniform grids with one fp16 scale per output row, and rounding to the nearest of their points.
// In: float32 weights (R, K).  Out: scales and codes.  Not here: error feedback between columns (gptq_solver.h).
// R = output rows, K = input columns; codes lie in [-max_code, max_code].
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/codes/quantized_model.h"
#include "runtime/tensor/dtype.h"
#include "runtime/tensor/host_device.h"
#include "runtime/tensor/matrix.h"

namespace thimble {

// The largest code of `bits` bits: 15 for 5, 31 for 6, 127 for 8.
constexpr int max_code_of_bits(int bits) { return (1 << (bits - 1)) - 1; }

// The quantile of `count` values, linearly interpolated (numpy's default): position fraction * (count - 1) of the
// sorted values. `largest`: so many of them as lie at that position or above, and the one below, in descending order. 0
// when there are none.
double quantile(std::span<const float> largest, size_t count, double fraction);

// Scale of a row whose magnitudes are clipped at `clip`: max(clip / c, 1 / c) with c = max_code, as fp16 bits.
// The floor of 1 / c keeps rows of tiny weights from spending bits. Infinite when fp16 cannot hold it.
uint16_t row_scale(double clip, int max_code);

// The nearest code of `weight` (ties to even), clamped. `weight` finite, `scale` > 0.
THIMBLE_HOST_DEVICE inline int8_t nearest_code(double weight, double scale, int max_code) {
  const double limit = max_code, code = weight / scale;
  return static_cast<int8_t>(std::nearbyint(code < -limit ? -limit : code > limit ? limit : code));
}

// A weight rounded to a grid.
struct RoundedWeight {
  int8_t code;
  double value;
};

// A row's grid, for solvers on the host and on devices: the scale of a column, which may be fetched ahead, and a weight
// rounded with it.
struct RowScaledRow {
  double row_scale;
  int max_code;

  THIMBLE_HOST_DEVICE double scale(int64_t) const { return row_scale; }
  THIMBLE_HOST_DEVICE RoundedWeight round(double scale, double weight) const {
    const int8_t code = nearest_code(weight, scale, max_code);
    return {code, code * scale};  // exact: 8 bits by 11
  }
};
inline RowScaledRow grid_row(const RowScaledCodes& coded, int64_t r, int64_t) {
  return {float_from_fp16(coded.row_scales[static_cast<size_t>(r)]), coded.max_code};
}
inline void set_code(RowScaledCodes& coded, int64_t columns, int64_t r, int64_t k, int8_t code) {
  coded.codes[static_cast<size_t>(r * columns + k)] = code;
}

// fp16 scales (C, R) of all rows, clipped at each of C quantiles of their magnitudes. Weights must be finite.
// A row whose scale fp16 cannot hold is an Error (bad input) that names the tensor and the row.
std::vector<uint16_t> row_scales(ConstMatrixView weights, std::span<const double> clip_fractions, int max_code,
                                 const std::string& name);

// Clip of the 8-bit rows of the method `trace`, as a quantile of the magnitudes.
constexpr double kNearestClipFraction = 0.9999984;

// Every weight rounded by itself, scales from row_scales() at kNearestClipFraction.
RowScaledCodes quantize_rows_to_nearest(ConstMatrixView weights, int max_code, const std::string& name);

}  // namespace thimble
