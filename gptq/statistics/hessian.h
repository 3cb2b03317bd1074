// hessian.h: second moments H = E[x x^T] of the inputs of linear layers, collected while calibration text runs.
// GPTQ (arXiv 2210.17323) minimises |W X - W' X|^2 (eq. 1); its Hessian per output row is 2 X X^T (as in eq. 2). The
// factor 2 and the number of tokens change no result, so H is kept per token. In: activations (T, K).  Out: Hessian (K,
// K), float64.  Not here: damping for the solver (hessian_factor.h). T = tokens of one sequence, K = input columns of a
// layer.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gptq/statistics/symmetric_matrix.h"
#include "runtime/ops/observers.h"
#include "runtime/tensor/matrix.h"
#include "runtime/tensor/product_arithmetic.h"

namespace thimble {

struct Hessian {
  SymmetricMatrix matrix;   // (K, K) mean of x x^T over all tokens, not damped
  int64_t token_count = 0;  // over all sequences
  int64_t sequence_count = 0;
};

// Layer name -> Hessian at its input. Layers that read the same input (query, key and value) share one object.
using HessianSet = std::map<std::string, std::shared_ptr<const Hessian>>;

// A Hessian and the layers that read its input.
struct SharedHessian {
  std::vector<std::string> layers;
  Hessian hessian;
};

// Sums of x x^T by the first of their layers.
using HessianSums = std::map<std::string, SharedHessian>;

// The means over the tokens of sums of x x^T. No tokens, inputs that saw different numbers of sequences, and a layer
// with two inputs, are Errors.
HessianSet mean_hessians(std::vector<SharedHessian> sums);
HessianSet mean_hessians(HessianSums sums);

// Adds x^T x, or x^T y, of one sequence x (T, K) and y (T, K): products of up to 2048 tokens are summed in float32,
// these sums in float64. The same for any thread count. A value that is not finite, or whose products overflow float32,
// is an Error (bad input) that names the layer, the sequence, the position and the column; of y, nothing is checked but
// what the products say. In bf16 x and y are rounded to it before.
void add_gram(ConstMatrixView x, const std::string& layer, int64_t sequence, SymmetricMatrix& sum,
              ProductArithmetic arithmetic = ProductArithmetic::kFloat32);
void add_cross_products(ConstMatrixView x, ConstMatrixView y, const std::string& layer, int64_t sequence,
                        MatrixF64& sum, ProductArithmetic arithmetic = ProductArithmetic::kFloat32);

// One sum by add_gram() per distinct input of a model.
// Observes forward passes of one sequence each, in a fixed order; then the result is the same for any thread count.
class HessianCollector final : public LinearObserver {
 public:
  // `first_sequence`: the number in errors of the first sequence.
  explicit HessianCollector(int64_t first_sequence = 0, ProductArithmetic arithmetic = ProductArithmetic::kFloat32)
      : first_sequence_(first_sequence), arithmetic_(arithmetic) {}

  // Adds one sequence x (T, K), the input of all of `layers`. The same input always comes with the same list. A value
  // that is not finite, or whose square overflows float32, is an Error (bad input) that names the first layer, the
  // sequence, the position and the column.
  void on_linear_input(std::span<const std::string> layers, ConstMatrixView x) override;

  // mean_hessians(). The collector is spent afterwards.
  HessianSet finish() && { return mean_hessians(std::move(sums_)); }

 private:
  int64_t first_sequence_;
  ProductArithmetic arithmetic_;
  HessianSums sums_;
};

// Damping of the method `trace` at collection, relative to the mean of the diagonal:
//   sum of x x^T over all tokens / sequences + kCollectionDamping * mean(diag) * I
constexpr double kCollectionDamping = 0.01;

}  // namespace thimble
