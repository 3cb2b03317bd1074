// nvfp4_grid.h: the scales of a weight matrix in NVFP4, and rounding to nearest with them.
// In: float32 weights (R, K).  Out: Nvfp4Codes.  Not here: error feedback between columns (gptq_solver.h).
#pragma once

#include <cstdint>

#include "runtime/nvfp4_matrix.h"

namespace thimble {

// The grid of one block.
struct Nvfp4BlockGrid {
  float block_scale, tensor_scale;

  // float32, as dequantize_nvfp4() has it.
  float value(uint8_t code) const { return float_from_e2m1(code) * block_scale * tensor_scale; }
  // The code nearest to `weight`, in float64, saturated; never -0, and 0 where the scale is.
  uint8_t nearest(double weight) const {
    const double step = double{block_scale} * tensor_scale;
    if (step == 0) return 0;
    const uint8_t magnitude = e2m1_magnitude(std::abs(weight) / step);
    return static_cast<uint8_t>(magnitude != 0 && weight < 0 ? magnitude | kE2m1Sign : magnitude);
  }
};

// Codes all 0. The tensor scale makes the largest weight's block reach 448; the scale of each block is the one with the
// least squared error of its weights rounded to nearest, of the UE4M3 codes around the one that maps its largest
// magnitude to 6: a smaller scale saturates the largest for the sake of the others, one half as large again maps it to
// 4, where steps are finer. Weights must be finite and at most 2^127.
Nvfp4Codes choose_nvfp4_scales(ConstMatrixView weights);

// Every weight rounded by itself.
Nvfp4Codes quantize_nvfp4_to_nearest(ConstMatrixView weights);

}  // namespace thimble
