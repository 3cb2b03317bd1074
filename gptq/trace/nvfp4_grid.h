// nvfp4_grid.h: the scales of a weight matrix in NVFP4, and rounding to nearest with them.
// In: float32 weights (R, K).  Out: Nvfp4Codes.  Not here: error feedback between columns (gptq_solver.h).
// What concerns one block has one source for the host and for devices; both give the same bits.
#pragma once

#include <cmath>
#include <cstdint>

#include "runtime/codes/nvfp4.h"
#include "runtime/codes/nvfp4_matrix.h"
#include "runtime/tensor/host_device.h"

namespace thimble {

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
