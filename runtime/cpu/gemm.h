// gemm.h: matrix products on the CPU (Eigen, compiled once per instruction set, chosen at run time).
// Work is cut into tiles of fixed size, so results are the same for any thread count. A right operand that is stored in
// another type gives the same bits as its values in float32 do, and no copy of it is made. Products in bf16 are those
// of more than kMostFewRows rows, and sums over rows, on processors that multiply so; all others are in float32.
#pragma once

#include <string_view>

#include "runtime/tensor/matrix.h"
#include "runtime/tensor/product_arithmetic.h"
#include "runtime/tensor/stored_matrix.h"

namespace thimble {

// The instruction set that products and row kernels use here: "avx512", "avx2" or "portable"; of products in bf16 also
// "avx512_bf16" or "amx_bf16". The environment variable THIMBLE_ISA may name a lesser one (for tests).
std::string_view cpu_instruction_set(ProductArithmetic arithmetic = ProductArithmetic::kFloat32);

// C (M,N) = A (M,K) B^T with B (N,K). A row of C has the same bits for every M from 2 to kMostFewRows and every place
// of its row in A, given K of at least 16 (Eigen computes the smallest products in another way).
constexpr int64_t kMostFewRows = 128;
void multiply_nt(ConstMatrixView a, const StoredMatrixView& b, MatrixView c,
                 ProductArithmetic arithmetic = ProductArithmetic::kFloat32);

// C (M,N) = A (M,K) B with B (K,N), or C += it: the transpose of the product above.
void multiply_nn(ConstMatrixView a, const StoredMatrixView& b, MatrixView c, bool adds = false,
                 ProductArithmetic arithmetic = ProductArithmetic::kFloat32);

// Lower triangle (row >= column) of C (K,K) += X^T X for X (T,K). Above the diagonal C is left undefined.
void accumulate_gram_lower(ConstMatrixView x, MatrixView c, ProductArithmetic arithmetic = ProductArithmetic::kFloat32);

// C (K,L) += X^T Y for X (T,K) and Y (T,L).
void accumulate_cross(ConstMatrixView x, ConstMatrixView y, MatrixView c,
                      ProductArithmetic arithmetic = ProductArithmetic::kFloat32);

// C (M,N) -= A (M,K) B with B (K,N), float64. Runs on the calling thread.
void subtract_product(ConstMatrixViewF64 a, ConstMatrixViewF64 b, MatrixViewF64 c);

}  // namespace thimble
