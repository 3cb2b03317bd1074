// cuda_gradient_products.cu: see cuda_gradient_products.cuh.
#include "runtime/cuda/cuda_gradient_products.cuh"

#include "runtime/cuda/kernels/cuda_row_vectors.cuh"
#include "runtime/cuda/kernels/cuda_sm90.cuh"

namespace thimble {
namespace {

bool are_sm90_factors(const Bf16Factor& a, const Bf16Factor& b, int64_t batch) {
  return has_sm90_kernels() && is_sm90_factor(a, batch) && is_sm90_factor(b, batch);
}

}  // namespace

template <typename C>
void launch_gradient_product(ProductForm form, const BasicProductInput<__nv_bfloat16>& a,
                             const BasicProductInput<__nv_bfloat16>& b, const BasicProductOutput<C>& c, bool add,
                             int64_t batch, cudaStream_t stream) {
  if (are_sm90_factors(a, b, batch)) return launch_bf16_product_sm90(form, a, b, c, add, batch, stream);
  launch_product(form, a, b, c, {.arithmetic = ProductArithmetic::kBf16, .add = add, .batch = {batch, 1}}, stream);
}

template void launch_gradient_product(ProductForm, const BasicProductInput<__nv_bfloat16>&,
                                      const BasicProductInput<__nv_bfloat16>&, const BasicProductOutput<float>&, bool,
                                      int64_t, cudaStream_t);
template void launch_gradient_product(ProductForm, const BasicProductInput<__nv_bfloat16>&,
                                      const BasicProductInput<__nv_bfloat16>&, const BasicProductOutput<__nv_bfloat16>&,
                                      bool, int64_t, cudaStream_t);

bool launch_activated_product(const Bf16Factor& a, const Bf16Factor& b, const float* bias, Activation activation,
                              Bf16View z, Bf16View y, cudaStream_t stream) {
  if (!are_sm90_factors(a, b, /*batch=*/1) || !is_row_vector(bias) || !has_row_vectors(z) || !has_row_vectors(y))
    return false;
  launch_activated_product_sm90(a, b, bias, activation, z, y, stream);
  return true;
}

bool launch_activation_gradient(const Bf16Factor& a, const Bf16Factor& b, Activation activation, ConstBf16View z,
                                Bf16View dz, cudaStream_t stream) {
  if (!are_sm90_factors(a, b, /*batch=*/1) || !has_row_vectors(z) || !has_row_vectors(dz)) return false;
  launch_activation_gradient_sm90(a, b, activation, z, dz, stream);
  return true;
}

}  // namespace thimble
