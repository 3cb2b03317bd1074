// cuda_shape.h: the padded widths of a model on CUDA devices (cuda_model.cuh says why), for those who lay it out and
// for those who plan its memory.
#pragma once

#include "runtime/families/golf/golf_config.h"

namespace thimble {

struct CudaShape {
  int width = 0, mlp_width = 0, head_width = 0;  // D, M, d
  int64_t vocabulary = 0;                        // V
  int64_t bigram_width = 0, value_width = 0;     // b, e; 0 without them
  int64_t query_columns = 0;                     // H * head_width
  int64_t kv_columns = 0;                        // G * head_width: keys or values
};

// Heads wider than 128 are a DeviceError.
CudaShape cuda_shape(const ModelConfig& config);

}  // namespace thimble
