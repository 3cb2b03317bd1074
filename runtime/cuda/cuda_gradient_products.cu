// cuda_gradient_products.cu: see cuda_gradient_products.cuh.
#include "runtime/cuda/cuda_gradient_products.cuh"

#include "runtime/cuda/kernels/cuda_sm90.cuh"
#include "runtime/cuda/kernels/products/cuda_bf16_product_sm90.cuh"

namespace thimble {

template <typename C>
void launch_gradient_product(ProductForm form, const BasicProductInput<__nv_bfloat16>& a,
                             const BasicProductInput<__nv_bfloat16>& b, const BasicProductOutput<C>& c, bool add,
                             int64_t batch, cudaStream_t stream) {
  if (has_sm90_kernels() && is_sm90_factor(a, batch) && is_sm90_factor(b, batch))
    return launch_bf16_product_sm90(form, a, b, c, add, batch, stream);
  launch_product(form, a, b, c, {.arithmetic = ProductArithmetic::kBf16, .add = add, .batch = {batch, 1}}, stream);
}

template void launch_gradient_product(ProductForm, const BasicProductInput<__nv_bfloat16>&,
                                      const BasicProductInput<__nv_bfloat16>&, const BasicProductOutput<float>&, bool,
                                      int64_t, cudaStream_t);
template void launch_gradient_product(ProductForm, const BasicProductInput<__nv_bfloat16>&,
                                      const BasicProductInput<__nv_bfloat16>&, const BasicProductOutput<__nv_bfloat16>&,
                                      bool, int64_t, cudaStream_t);

}  // namespace thimble
