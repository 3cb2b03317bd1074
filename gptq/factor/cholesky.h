// cholesky.h: the triangular factor of an inverse that GPTQ walks along, in float64 (Eigen on blocks,
// runtime/cpu/gemm.h between them). Results are the same for any thread count.
#pragma once

#include <optional>

#include "runtime/tensor/matrix.h"

namespace thimble {

// U (K, K), upper triangular with zeros below, such that A^-1 = U^T U: "Cholesky(H^-1)^T" of GPTQ (arXiv 2210.17323,
// algorithm 1). Reads the upper triangle of A (K, K), symmetric and finite.
// Nothing when A is not positive definite to working precision.
//
// A^-1 is never formed. With J the reversal of rows or columns and J A J = L L^T, U = J L^-1 J.
std::optional<MatrixF64> inverse_upper_cholesky(MatrixF64 a);

}  // namespace thimble
