// tile_products.h: products of attention's tiles in bf16, on the calling thread: their second factor is packed for one
// product alone. Internal to runtime/.
#pragma once

#include "runtime/cpu/cpu_kernels.h"
#include "runtime/tensor/product_arithmetic.h"

namespace thimble {

// A (M,K), with A^T (K,M); B (N,K) or (K,N); C (M,N). K > 0. An element of C is a sum in an order that follows from K
// alone. Calls of the callers': kernels must define nothing that others could link.
struct TileProducts {
  void (*nt)(ConstMatrixView a, const StoredMatrixView& b, MatrixView c);         // C = A B^T
  void (*nn)(ConstMatrixView a, const StoredMatrixView& b, MatrixView c);         // C = A B
  void (*add_tn)(ConstMatrixView a_transposed, ConstMatrixView b, MatrixView c);  // C += A B
};

// Null where products in this arithmetic are float32's, which the kernels form themselves.
#ifdef THIMBLE_X86_KERNELS
const TileProducts* tile_products(ProductArithmetic arithmetic);
#else
constexpr const TileProducts* tile_products(ProductArithmetic) { return nullptr; }
#endif

}  // namespace thimble
