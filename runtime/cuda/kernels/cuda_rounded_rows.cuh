// cuda_rounded_rows.cuh: where rows of a float32 matrix go in bf16 besides, for a product that reads them next.
#pragma once

#include <cuda_bf16.h>

#include <functional>

#include "runtime/cuda/kernels/cuda_float_matrix.cuh"

namespace thimble {

struct RoundedRows {
  __nv_bfloat16* data = nullptr;  // null: nowhere
  int64_t stride = 0;
};

// Asked by who is about to write `out`.
using RoundsRows = std::function<RoundedRows(ConstCudaView out)>;
inline RoundedRows rounded_rows(const RoundsRows* rounds, ConstCudaView out) {
  return rounds ? (*rounds)(out) : RoundedRows();
}

}  // namespace thimble
