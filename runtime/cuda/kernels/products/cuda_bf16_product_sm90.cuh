// cuda_bf16_product_sm90.cuh: the products of cuda_float_product.cuh of factors that lie in bf16 in device memory, on
// Hopper's own units (cuda_sm90.cuh).
#pragma once

#include "runtime/cuda/kernels/products/cuda_float_product.cuh"

namespace thimble {

// As many matrices as a product's batch has, steps.outer elements apart.
using Bf16Factor = BasicProductInput<__nv_bfloat16>;

// Can bulk copies read it? Rows begin at multiples of 16 bytes.
bool is_sm90_factor(const Bf16Factor& factor, int64_t batch);

// Enqueues C = A B of the given form, or C += A B, of `batch` products, whose results lie c.steps.outer apart. Where
// has_sm90_kernels(), of factors that is_sm90_factor(). C: float or __nv_bfloat16.
template <typename C>
void launch_bf16_product_sm90(ProductForm form, const Bf16Factor& a, const Bf16Factor& b,
                              const BasicProductOutput<C>& c, bool add, int64_t batch, cudaStream_t stream);

}  // namespace thimble
