// grid.h: uniform grids with one fp16 scale per output row, and rounding to the nearest of their points.
// In: float32 weights (R, K).  Out: scales and codes.  Not here: error feedback between columns (gptq_solver.h).
// R = output rows, K = input columns; codes lie in [-max_code, max_code].
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>

#include "runtime/codes/quantized_model.h"
#include "runtime/tensor/matrix.h"

namespace thimble {

// The largest code of `bits` bits: 15 for 5, 31 for 6, 127 for 8.
constexpr int max_code_of_bits(int bits) { return (1 << (bits - 1)) - 1; }

// The quantile of `values`, linearly interpolated (numpy's default): position fraction * (n - 1) of the sorted values.
// Reorders `values`. 0 when there are none.
double quantile(std::span<float> values, double fraction);

// Scale of a row whose magnitudes are clipped at `clip`: max(clip / c, 1 / c) with c = max_code, as fp16 bits.
// The floor of 1 / c keeps rows of tiny weights from spending bits. Infinite when fp16 cannot hold it.
uint16_t row_scale(double clip, int max_code);

// The nearest code of `weight` (ties to even), clamped. `weight` finite, `scale` > 0.
inline int8_t nearest_code(double weight, double scale, int max_code) {
  auto limit = static_cast<double>(max_code);
  return static_cast<int8_t>(std::nearbyint(std::clamp(weight / scale, -limit, limit)));
}

// fp16 scales of all rows, each clipped at the given quantile of its magnitudes. Weights must be finite.
// A row whose scale fp16 cannot hold is an Error (bad input) that names the tensor and the row.
std::vector<uint16_t> row_scales(ConstMatrixView weights, double clip_fraction, int max_code, const std::string& name);

// Clip of the 8-bit rows of the method `trace`, as a quantile of the magnitudes.
constexpr double kNearestClipFraction = 0.9999984;

// Every weight rounded by itself, scales from row_scales() at kNearestClipFraction.
RowScaledCodes quantize_rows_to_nearest(ConstMatrixView weights, int max_code, const std::string& name);

}  // namespace thimble
