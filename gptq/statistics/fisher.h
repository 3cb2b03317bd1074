// fisher.h: how much the loss feels an error at the output of a linear layer: the diagonal of the output-side Fisher.
//   F(r) = mean over tokens of (dL / dy_r)^2,   y the layer's output at a token, L the summed NLL of its sequence
// An error e of a token's output that is independent of the gradient adds about e^T diag(F) e / 2 to the loss, in
// nats: KL(p || p') to second order (Pascanu and Bengio, arXiv 1301.3584; the layer-wise K-FAC of arXiv 1503.05671
// factors the Hessian of a matrix into E[x x^T] and this). Of tokens that the model drew from its own p, the squared
// gradient of their NLL is the true Fisher in expectation; docs/method.md says how far temperature 0.8 is from it.
// In: gradients (P, R) of one sequence at a time.  Out: F, float64.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "gptq/statistics/hessian.h"
#include "runtime/ops/network.h"
#include "runtime/ops/observers.h"

namespace thimble {

struct Fisher {
  std::vector<double> mean_square;  // (R) one per output
  int64_t token_count = 0;

  double mean() const;  // over the outputs
  bool operator==(const Fisher&) const = default;
};

using FisherSet = std::map<std::string, Fisher>;
using RowCounts = std::map<std::string, std::vector<int64_t>>;  // table -> how often each of its rows was looked up

// What the loss feels of the calibration text, besides the Hessians at the inputs of the layers.
struct LossStatistics {
  FisherSet output_fisher;  // matrix -> Fisher at its output; the output head's before the softcap
  FisherSet lookup_fisher;  // table -> Fisher of the row that a token looks up
  RowCounts row_counts;
  HessianSet head;  // name of the output head -> Hessian at its input, the final norm's output

  bool empty() const { return output_fisher.empty(); }
};

// Makes means of Fishers whose mean_square holds sums.
void divide_by_tokens(LossStatistics& sums);

struct CalibrationStatistics {
  HessianSet hessians;
  LossStatistics loss;  // empty unless it was asked for
};

// Sums the squares of gradients in float64, sequence after sequence in a fixed order: the same for any thread count.
// Observes backward passes of one sequence each.
class FisherCollector final : public GradientObserver {
 public:
  // `network` must outlive the collector. `first_sequence`: the number in errors of the first sequence.
  explicit FisherCollector(const Network& network, int64_t first_sequence = 0);

  // A gradient that is not finite is an Error (bad input) that names matrix, sequence, position and output.
  void on_output_gradient(const std::string& weight, int64_t first_row, ConstMatrixView gradient,
                          ConstMatrixView output) override;
  void on_lookup_gradient(const std::string& table, std::span<const int32_t> rows, ConstMatrixView gradient) override;
  // After each sequence.
  void end_sequence() { ++sequence_; }

  // All but the head's Hessian. No tokens at all is an Error. The collector is spent afterwards.
  LossStatistics finish() &&;

 private:
  void add_squares(const std::string& name, int64_t first_row, ConstMatrixView gradient, Fisher& sum) const;

  const Network& network_;
  int64_t sequence_;
  LossStatistics sums_;  // mean_square holds sums
};

}  // namespace thimble
