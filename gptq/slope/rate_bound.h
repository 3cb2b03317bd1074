// rate_bound.h: the fewest bits that any code could spend on a matrix at the loss that it was quantized with: the
// rate-distortion function of a Gaussian source, by reverse water-filling (Cover and Thomas, theorem 10.3.3).
// Row r of the matrix is taken for K independent draws from a Gaussian of variance s_r, the mean square of the row. In
// the eigenvectors of H, whose eigenvalues are lambda_k, losing everything about one draw costs
//   v_rk = 1/2 * row weight r * s_r * lambda_k         in the unit of matrix_loss.h
// and a loss of D in all is cheapest when every draw loses the same, or all that it has:
//   sum of min(level, v_rk) = D,   bits = sum of max(0, 1/2 log2(v_rk / level))
// In: MatrixLoss, weights, a loss.  Out: bits.  Trained weights are no Gaussian draws: where their rows depend on each
// other, or on H, a code could do better than this bound.
// R = rows, K = columns.
#pragma once

#include <span>
#include <vector>

#include "gptq/slope/matrix_loss.h"
#include "runtime/tensor/matrix.h"

namespace thimble {

struct GaussianSource {
  std::vector<double> rows;     // (R) row weight * mean square of the row
  std::vector<double> columns;  // (K) eigenvalues of H, descending, none below 0
};

// The eigenvalues of loss.hessian, or its diagonal, as GaussianSource has them. O(K^3). Of a Hessian with values that
// are not finite, an Error (bad input) that names `layer`.
std::vector<double> hessian_spectrum(const MatrixLoss& loss, const std::string& layer);

GaussianSource gaussian_source(const MatrixLoss& loss, ConstMatrixView weights, std::vector<double> spectrum);

// Bits of all `sources` together, of which none loses more than another where it has more to lose: the loss of one
// source alone, or the sum over a whole model. Infinite for a loss of 0 where there is something to lose.
double rate_bound_bits(std::span<const GaussianSource> sources, double loss);

}  // namespace thimble
