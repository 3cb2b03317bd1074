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
#include <vector>

#include "gptq/statistics/symmetric_matrix.h"
#include "runtime/ops/observers.h"
#include "runtime/tensor/matrix.h"

namespace thimble {

struct Hessian {
  SymmetricMatrix matrix;      // (K, K) mean of x x^T over all tokens, not damped
  int64_t token_count = 0;     // over all sequences
  int64_t sequence_count = 0;  // calls of add()
};

// Sums x x^T for one input. Products of up to 2048 tokens are summed in float32, these sums in float64.
// Sequences must arrive in a fixed order, one at a time; then the result is the same for any thread count.
class HessianAccumulator {
 public:
  // `layer` names the input in errors, `first_sequence` is the number there of the first one added.
  HessianAccumulator(std::string layer, int64_t columns, int64_t first_sequence = 0);

  // Adds one sequence x (T, K). A value that is not finite, or whose square overflows float32, is an Error (bad input)
  // that names the layer, the sequence, the position and the column.
  void add(ConstMatrixView x);

  int64_t columns() const { return sum_.size(); }

  // The mean over the tokens seen; none is an Error. The accumulator is spent afterwards.
  Hessian finish() &&;

 private:
  void require_finite(const Matrix& products, ConstMatrixView x, int64_t first_position) const;

  std::string layer_;
  int64_t first_sequence_;
  SymmetricMatrix sum_;
  int64_t token_count_ = 0;
  int64_t sequence_count_ = 0;
};

// Layer name -> Hessian at its input. Layers that read the same input (query, key and value) share one object.
using HessianSet = std::map<std::string, std::shared_ptr<const Hessian>>;

// A Hessian and the layers that read its input.
struct SharedHessian {
  std::vector<std::string> layers;
  Hessian hessian;
};

// Inputs that saw different numbers of sequences, and a layer with two inputs, are Errors.
HessianSet share_hessians(std::vector<SharedHessian> inputs);
// The same of sums of x x^T, which it divides by their tokens.
HessianSet mean_hessians(std::vector<SharedHessian> sums);

// One accumulator per distinct input of a model. Observes forward passes of one sequence each.
class HessianCollector final : public LinearObserver {
 public:
  // `first_sequence`: the number in errors of the first sequence.
  explicit HessianCollector(int64_t first_sequence = 0) : first_sequence_(first_sequence) {}

  // Adds one sequence x (T, K), the input of all of `layers`. The same input always comes with the same list.
  void on_linear_input(std::span<const std::string> layers, ConstMatrixView x) override;

  // Inputs that saw different numbers of sequences are an Error. The collector is empty afterwards.
  HessianSet finish() &&;

 private:
  struct Input {
    std::vector<std::string> layers;
    HessianAccumulator accumulator;
  };
  int64_t first_sequence_;
  std::map<std::string, Input> inputs_;  // by the first layer's name
};

// Damping of the method `trace` at collection, relative to the mean of the diagonal:
//   sum of x x^T over all tokens / sequences + kCollectionDamping * mean(diag) * I
constexpr double kCollectionDamping = 0.01;

}  // namespace thimble
