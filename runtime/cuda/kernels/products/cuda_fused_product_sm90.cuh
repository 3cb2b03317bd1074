// cuda_fused_product_sm90.cuh: the two products beside an activation y = f(z), where passes with gradients store
// what they make, on Hopper's own units: the activation, or its slope, is applied to sums on their way to memory. Bits
// are those of a product that is stored, rounded, and read again.
#pragma once

#include "runtime/cuda/kernels/products/cuda_bf16_product_sm90.cuh"
#include "runtime/ops/activation.h"

namespace thimble {

// All where has_sm90_kernels(), of factors that is_sm90_factor() and of views and a bias with rows of whole vectors
// (cuda_row_vectors.cuh).

// Enqueues z = a b^T, then + bias (N) unless that is null, rounded each time, and y = f(z), all (M, N). z without data
// is not stored; y may not lie in the factors.
void launch_activated_product_sm90(const Bf16Factor& a, const Bf16Factor& b, const float* bias, Activation activation,
                                   Bf16View z, Bf16View y, cudaStream_t stream);
// Enqueues dz = f'(z) * (a b), the product rounded first, (M, N). dz may be z, but not lie in the factors.
void launch_activation_gradient_sm90(const Bf16Factor& a, const Bf16Factor& b, Activation activation, ConstBf16View z,
                                     Bf16View dz, cudaStream_t stream);

}  // namespace thimble
