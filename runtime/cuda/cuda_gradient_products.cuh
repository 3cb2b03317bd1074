// cuda_gradient_products.cuh: the products of gradient passes, of float32 matrices in device memory: in float32, or of
// factors rounded to bf16, by the fastest kernels that the device has for that. An element's sum runs over k in
// ascending order, whatever the batch: equal inputs give equal bits.
#pragma once

#include <cuda_bf16.h>

#include "runtime/cuda/kernels/cuda_rounded_rows.cuh"
#include "runtime/cuda/kernels/products/cuda_bf16_product_sm90.cuh"
#include "runtime/cuda/kernels/products/cuda_float_product.cuh"

namespace thimble {

// Of a matrix, for reserve().
struct MatrixSize {
  int64_t rows = 0, columns = 0;
};

// Rounded factors are kept: one that lies where an earlier one did is taken to be that one, until forget(). Whoever
// writes a left factor may round it on the way (round_ahead()).
class CudaGradientProducts {
 public:
  // Of the current device.
  explicit CudaGradientProducts(ProductArithmetic arithmetic);
  CudaGradientProducts(const CudaGradientProducts&) = delete;
  CudaGradientProducts& operator=(const CudaGradientProducts&) = delete;

  // Room for factors of these sizes, all matrices of a batch together; larger ones make room when they come.
  void reserve(ProductForm form, const MatrixSize& a, const MatrixSize& b);
  // Enqueues C = A B of the given form, or C += A B. Of a batch, matrices lie steps.outer apart.
  void multiply(ProductForm form, const ProductInput& a, const ProductInput& b, const ProductOutput& c, bool add,
                int64_t batch, cudaStream_t stream);
  // Matrices may have changed: all, or those that begin within this memory.
  void forget();
  void forget(const float* begin, int64_t count);
  // Where the rows of the next product's left factor go, rounded, from whoever is about to write that; nowhere where
  // factors are not rounded before.
  RoundedRows round_ahead(ConstCudaView factor);

 private:
  // Room for one rounded factor, and which one it holds.
  struct Rounded {
    DeviceArray<__nv_bfloat16> values;
    const float* from = nullptr;  // null: none
    int64_t rows = 0, columns = 0, stride = 0;
  };
  Bf16Factor rounded(const ProductInput& input, int64_t batch, Rounded& to, cudaStream_t stream);
  // Weights have a place of their own: inputs, which several gradients are made of, outlive them.
  Rounded& right(ProductForm form) { return form == ProductForm::kTN ? inputs_ : weights_; }

  ProductArithmetic arithmetic_;
  bool sm90_;  // factors are rounded before, not on their way
  Rounded left_, inputs_, weights_;
};

}  // namespace thimble
