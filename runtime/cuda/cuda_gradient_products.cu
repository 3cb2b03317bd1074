// cuda_gradient_products.cu: see cuda_gradient_products.cuh.
#include "runtime/cuda/cuda_gradient_products.cuh"

#include <functional>

#include "runtime/cuda/kernels/cuda_sm90.cuh"

namespace thimble {

CudaGradientProducts::CudaGradientProducts(ProductArithmetic arithmetic)
    : arithmetic_(arithmetic), sm90_(arithmetic == ProductArithmetic::kBf16 && has_sm90_kernels()) {}

void CudaGradientProducts::reserve(ProductForm form, const MatrixSize& a, const MatrixSize& b) {
  if (!sm90_) return;
  forget();
  left_.values.reserve(bf16_elements(a.rows, a.columns), "rounded factors");
  right(form).values.reserve(bf16_elements(b.rows, b.columns), "rounded factors");
}

void CudaGradientProducts::forget() {
  for (Rounded* factor : {&left_, &inputs_, &weights_}) factor->from = nullptr;
}

void CudaGradientProducts::forget(const float* begin, int64_t count) {
  for (Rounded* factor : {&left_, &inputs_, &weights_})
    if (!std::less<>()(factor->from, begin) && std::less<>()(factor->from, begin + count)) factor->from = nullptr;
}

RoundedRows CudaGradientProducts::round_ahead(ConstCudaView factor) {
  const int64_t stride = round_up(factor.columns, 8);
  if (!sm90_ || stride != factor.columns) return {};  // what pads a row would have to be cleared
  left_.values.reserve(bf16_elements(factor.rows, factor.columns), "rounded factors");
  left_.from = factor.data;
  left_.rows = factor.rows, left_.columns = factor.columns, left_.stride = factor.stride;
  return {left_.values.data(), stride};
}

Bf16Factor CudaGradientProducts::rounded(const ProductInput& input, int64_t batch, Rounded& to, cudaStream_t stream) {
  const int64_t rows = batch * input.rows;
  const bool is_whole = batch == 1 || input.steps.outer == input.rows * input.stride;  // rows follow each other
  const bool is_held =
      is_whole && to.from == input.data && to.rows == rows && to.columns == input.columns && to.stride == input.stride;
  if (!is_held) {
    to.values.reserve(bf16_elements(rows, input.columns), "rounded factors");
    launch_round_to_bf16(input, batch, to.values.data(), stream);
    to.from = is_whole ? input.data : nullptr;
    to.rows = rows, to.columns = input.columns, to.stride = input.stride;
  }
  return bf16_factor(input.rows, input.columns, to.values.data());
}

void CudaGradientProducts::multiply(ProductForm form, const ProductInput& a, const ProductInput& b,
                                    const ProductOutput& c, bool add, int64_t batch, cudaStream_t stream) {
  if (!sm90_)
    return launch_product(form, a, b, c, {.arithmetic = arithmetic_, .add = add, .batch = {batch, 1}}, stream);
  const Bf16Factor left = rounded(a, batch, left_, stream), other = rounded(b, batch, right(form), stream);
  launch_bf16_product_sm90(form, left, other, c, add, batch, stream);
}

}  // namespace thimble
