// grid.h: what weights are rounded to: uniform grids with one fp16 scale per output row, and NVFP4; the choice of
// scales, and rounding to the nearest point. In: float32 weights (R, K).  Out: scales and codes.  Not here: error
// feedback between columns (gptq_solver.h). R = output rows, K = input columns, B = ceil(K / 16) blocks of a row; codes
// of rows lie in [-max_code, max_code].
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/codes/nvfp4.h"
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

// NVFP4. What concerns one block has one source for the host and for devices; both give the same bits.

// The grid of one block.
struct Nvfp4BlockGrid {
  float block_scale, tensor_scale;

  // float32, as dequantize_nvfp4() has it.
  THIMBLE_HOST_DEVICE float value(uint8_t code) const { return float_from_e2m1(code) * block_scale * tensor_scale; }
  // The code nearest to `weight`, in float64, saturated; never -0, and 0 where the scale is.
  THIMBLE_HOST_DEVICE uint8_t nearest(double weight) const {
    const double step = double{block_scale} * tensor_scale;
    if (step == 0) return 0;
    const uint8_t magnitude = e2m1_magnitude(fabs(weight) / step);
    return static_cast<uint8_t>(magnitude != 0 && weight < 0 ? magnitude | kE2m1Sign : magnitude);
  }
};

// A row's grid, as RowScaledRow.
struct Nvfp4Row {
  const uint8_t* scales;  // (B)
  float tensor_scale;

  THIMBLE_HOST_DEVICE float scale(int64_t k) const { return float_from_ue4m3(scales[k / kNvfp4Block]); }
  THIMBLE_HOST_DEVICE RoundedWeight round(float scale, double weight) const {
    const Nvfp4BlockGrid grid{scale, tensor_scale};
    const uint8_t code = grid.nearest(weight);
    return {static_cast<int8_t>(code), grid.value(code)};
  }
};
inline Nvfp4Row grid_row(const Nvfp4Codes& coded, int64_t r, int64_t columns) {
  return {coded.block_scales.data() + r * nvfp4_blocks(columns), coded.tensor_scale};
}
inline void set_code(Nvfp4Codes& coded, int64_t columns, int64_t r, int64_t k, int8_t code) {
  set_nvfp4_code(coded, nvfp4_row_bytes(columns), r, k, static_cast<uint8_t>(code));
}

// sum + x^2, both rounded: a device would fuse them.
THIMBLE_HOST_DEVICE inline double add_square(double sum, double x) {
#ifdef THIMBLE_DEVICE_CODE
  return __dadd_rn(sum, __dmul_rn(x, x));
#else
  return sum + x * x;
#endif
}

// UE4M3 codes tried below and above the one that maps a block's largest magnitude to 6. Eight codes are an octave: a
// third of the range is given up at most, and the largest magnitude is mapped to 3 and more.
constexpr int kNvfp4CodesBelow = 4, kNvfp4CodesAbove = 8;

// The UE4M3 code of a block's scale: of those around the one that maps its largest magnitude to 6, the one with the
// least squared error of its weights rounded to nearest (the smallest when equal). A smaller scale saturates the
// largest for the sake of the others; one half as large again maps it to 4, where steps are finer.
THIMBLE_HOST_DEVICE inline uint8_t best_nvfp4_block_scale(const float* weights, int count, float tensor_scale) {
  const float amax = nvfp4_amax(weights, count);
  if (amax == 0) return 0;
  const int middle = nvfp4_block_scale(amax, tensor_scale);
  const int first = middle < kNvfp4CodesBelow ? 0 : middle - kNvfp4CodesBelow;
  double least = INFINITY;
  int best = 0;
  for (int code = first; code <= middle + kNvfp4CodesAbove && code <= kUe4m3MaxCode; ++code) {
    const Nvfp4BlockGrid grid{float_from_ue4m3(static_cast<uint8_t>(code)), tensor_scale};
    double error = 0;
    for (int i = 0; i < count; ++i)
      error = add_square(error, weights[i] - double{grid.value(grid.nearest(weights[i]))});
    if (error < least) {
      least = error;
      best = code;
    }
  }
  return static_cast<uint8_t>(best);
}

// Codes all 0, the tensor scale nvfp4_tensor_scale()'s, those of blocks as above. Weights must be finite and at most
// 2^127.
Nvfp4Codes choose_nvfp4_scales(ConstMatrixView weights);

// Every weight rounded by itself.
Nvfp4Codes quantize_nvfp4_to_nearest(ConstMatrixView weights);

}  // namespace thimble
