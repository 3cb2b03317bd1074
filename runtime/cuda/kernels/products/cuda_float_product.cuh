// cuda_float_product.cuh: products of float32 matrices, many of one shape at a time: in float32 arithmetic (no TF32),
// or of factors rounded to bf16, on tensor cores, with sums in float32; and of matrices that lie in bf16.
//   kNT: C (M,N) = A (M,K) B (N,K)^T      y = x W^T
//   kNN: C (M,N) = A (M,K) B (K,N)        dx = dy W
//   kTN: C (M,N) = A (K,M)^T B (K,N)      dW = dy^T x
// An element's sum runs over k in ascending order (by blocks of 16 on tensor cores), whatever the batch and wherever
// the element lies: equal inputs give equal bits. No cuBLAS, which promises that for equal shapes only, and which
// programs would have to bring along.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "runtime/cuda/kernels/cuda_float_matrix.cuh"
#include "runtime/tensor/product_arithmetic.h"

namespace thimble {

enum class ProductForm { kNT, kNN, kTN };

// Of the `outer` x `inner` products of a batch, number (o, i) reads or writes at
// data + o * outer_step + i / inner_group * inner_step.
struct ProductSteps {
  int64_t outer = 0, inner = 0;
  int inner_group = 1;
};

// A matrix as it is stored. A product reads zeros outside it, so that the factors may differ in K: one of them may have
// a padding of zeros there.
template <typename T>
struct BasicProductInput {
  BasicProductInput(const T* d, int64_t r, int64_t c, int64_t s, ProductSteps p = {})
      : data(d), rows(r), columns(c), stride(s), steps(p) {}
  BasicProductInput(BasicCudaView<const T> view) : BasicProductInput(view.data, view.rows, view.columns, view.stride) {}

  const T* data;
  int64_t rows, columns, stride;
  ProductSteps steps;
};
using ProductInput = BasicProductInput<float>;

template <typename T>
struct BasicProductOutput {
  BasicProductOutput(T* d, int64_t r, int64_t c, int64_t s, ProductSteps p = {})
      : data(d), rows(r), columns(c), stride(s), steps(p) {}
  BasicProductOutput(BasicCudaView<T> view) : BasicProductOutput(view.data, view.rows, view.columns, view.stride) {}

  T* data;
  int64_t rows, columns, stride;
  ProductSteps steps;
};
using ProductOutput = BasicProductOutput<float>;

// Products of which causality leaves half, in tiles of kCausalTile rows. Row i of C, or of A where K is cut, is query i
// or key i of a window.
enum class ProductPart {
  kWhole,
  kLowerTiles,    // C's tiles that lie above its diagonal are not written
  kDepthToRow,    // k up to the end of the row's tile: beyond it A must be zero
  kDepthFromRow,  // k from the beginning of the row's tile: before it A must be zero
};
constexpr int kCausalTile = 128;

struct ProductBatch {
  int64_t outer = 1, inner = 1;
};

struct ProductOptions {
  ProductArithmetic arithmetic = ProductArithmetic::kFloat32;
  bool add = false;  // C += A B
  ProductBatch batch = {};
  ProductPart part = ProductPart::kWhole;
};

// Enqueues C = A B of the given form.
void launch_product(ProductForm form, const ProductInput& a, const ProductInput& b, const ProductOutput& c,
                    const ProductOptions& options, cudaStream_t stream);
// Of matrices in bf16; options.arithmetic is kBf16. What is added to is rounded once more. C: float or __nv_bfloat16.
template <typename C>
void launch_product(ProductForm form, const BasicProductInput<__nv_bfloat16>& a,
                    const BasicProductInput<__nv_bfloat16>& b, const BasicProductOutput<C>& c,
                    const ProductOptions& options, cudaStream_t stream);

}  // namespace thimble
