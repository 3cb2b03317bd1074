// hessian_sum.h: the Hessians of a calibration set from those of its parts, so that parts can be collected apart.
// In: HessianSets of the parts, in order.  Out: the HessianSet of the whole.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "gptq/statistics/hessian.h"
#include "runtime/base/parallel.h"

namespace thimble {

// A calibration set is always cut into so many parts, or into single sequences if there are fewer, whoever collects
// them: float64 sums round, and are equal only when equal parts are added in equal order.
constexpr int64_t kMaxHessianParts = 8;
size_t hessian_part_count(int64_t sequences);

// The sequences of part `part`.
Share hessian_part(int64_t sequences, size_t part);

// H = (1 / N) * sum over parts p of N_p H_p in float64, N_p the tokens of part p and N those of all. At least one part.
class HessianSum {
 public:
  // A part whose layers or sizes are not the first one's is an Error.
  void add(const HessianSet& part);

  // The sum is spent afterwards.
  HessianSet finish() &&;

  // What it consists of, for who keeps it and reads it back.
  friend auto members(HessianSum& sum) { return std::tie(sum.inputs_); }

 private:
  // The layers that read one input, and the sum of x x^T over all tokens so far.
  struct Input {
    std::vector<std::string> layers;
    Hessian sum;

    friend auto members(Input& input) { return std::tie(input.layers, input.sum); }
  };
  std::map<std::string, Input> inputs_;  // by the first layer's name
};

}  // namespace thimble
