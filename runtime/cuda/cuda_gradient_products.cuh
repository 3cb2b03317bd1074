// cuda_gradient_products.cuh: the products of gradient passes, by the fastest kernels that the device has: of float32
// matrices in float32 arithmetic, of matrices in bf16 on tensor cores. An element's sum runs over k in ascending order,
// whatever the batch: equal inputs give equal bits.
// The products beside an activation may apply it on the way: in one kernel less, with the same bits.
#pragma once

#include "runtime/cuda/kernels/products/cuda_fused_product_sm90.cuh"

namespace thimble {

// Enqueues C = A B of the given form, or C += A B. Of a batch, matrices lie steps.outer apart. C: float, or of bf16
// factors __nv_bfloat16.
inline void launch_gradient_product(ProductForm form, const ProductInput& a, const ProductInput& b,
                                    const ProductOutput& c, bool add, int64_t batch, cudaStream_t stream) {
  launch_product(form, a, b, c, {.add = add, .batch = {batch, 1}}, stream);
}
template <typename C>
void launch_gradient_product(ProductForm form, const BasicProductInput<__nv_bfloat16>& a,
                             const BasicProductInput<__nv_bfloat16>& b, const BasicProductOutput<C>& c, bool add,
                             int64_t batch, cudaStream_t stream);

// Enqueue what cuda_fused_product_sm90.cuh says, unless no kernel does so for what they are given: then false.
inline bool launch_activated_product(const ProductInput&, const ProductInput&, const float* /*bias*/, Activation,
                                     CudaView /*z*/, CudaView /*y*/, cudaStream_t) {
  return false;
}
bool launch_activated_product(const Bf16Factor& a, const Bf16Factor& b, const float* bias, Activation activation,
                              Bf16View z, Bf16View y, cudaStream_t stream);
inline bool launch_activation_gradient(const ProductInput&, const ProductInput&, Activation, ConstCudaView /*z*/,
                                       CudaView /*dz*/, cudaStream_t) {
  return false;
}
bool launch_activation_gradient(const Bf16Factor& a, const Bf16Factor& b, Activation activation, ConstBf16View z,
                                Bf16View dz, cudaStream_t stream);

}  // namespace thimble
