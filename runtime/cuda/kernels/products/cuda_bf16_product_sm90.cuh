// cuda_bf16_product_sm90.cuh: the products of cuda_float_product.cuh of factors that lie in bf16 in device memory, on
// Hopper's own units (cuda_sm90.cuh).
#pragma once

#include <cuda_bf16.h>

#include "runtime/cuda/kernels/products/cuda_float_product.cuh"
#include "runtime/tensor/host_device.h"

namespace thimble {

// As many matrices as a product's batch has, `step` elements apart. `data` aligned to 16 bytes; stride and step are
// multiples of 8.
struct Bf16Factor {
  const __nv_bfloat16* data = nullptr;
  int64_t rows = 0, columns = 0, stride = 0, step = 0;
};

// Elements that the rounded copy of a matrix takes.
constexpr int64_t bf16_elements(int64_t rows, int64_t columns) { return rows * round_up(columns, 8); }

// Matrices that lie one after the other, as rounded copies do.
inline Bf16Factor bf16_factor(int64_t rows, int64_t columns, const __nv_bfloat16* data) {
  return {data, rows, columns, round_up(columns, 8), bf16_elements(rows, columns)};
}

// Enqueues the rounding of `batch` matrices like `from`, its steps.outer apart. `to` has room for batch *
// bf16_elements().
void launch_round_to_bf16(const ProductInput& from, int64_t batch, __nv_bfloat16* to, cudaStream_t stream);

// Enqueues C = A B of the given form, or C += A B, of `batch` products, whose results lie c.steps.outer apart. Where
// has_sm90_kernels().
void launch_bf16_product_sm90(ProductForm form, const Bf16Factor& a, const Bf16Factor& b, const ProductOutput& c,
                              bool add, int64_t batch, cudaStream_t stream);

}  // namespace thimble
