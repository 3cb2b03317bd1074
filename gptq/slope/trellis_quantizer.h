// trellis_quantizer.h: the codes of one column, chosen together: Viterbi down its rows (Marcellin and Fischer 1990).
//   cost = sum over rows of (target - level)^2 + rate_weight * bits(level)
// is the least that any path of the trellis has. Without a trellis each row has its own least cost.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gptq/slope/rate_model.h"
#include "gptq/slope/trellis_branches.h"
#include "runtime/codes/trellis.h"

namespace thimble {

class TrellisQuantizer {
 public:
  // Scratch for columns of at most `most_rows` rows. rate_weight >= 0 is in squared levels per bit. A path starts from
  // state 0.
  TrellisQuantizer(Trellis trellis, double rate_weight, int64_t most_rows);

  // targets: (rows) in levels, finite; classes: (rows) of the rate model. Fills levels (rows), each a level of the
  // state that those above it lead to, of a code in [-kMaxSteppedCode, kMaxSteppedCode].
  void quantize(std::span<const double> targets, std::span<const uint8_t> classes, std::span<int32_t> levels);

 private:
  // The best levels of one row, by residue (trellis_branches.h), and their costs less the lowest.
  struct Branches {
    int32_t levels[kBranches];
    float costs[kBranches];
  };

  Branches branches(double target, const LevelCosts& cost) const;
  // costs, next: (states)
  void add_compare_select(const float* costs, const Branches& branches, float* next) const;
  void trace_back(std::span<int32_t> levels) const;

  Trellis trellis_;
  TrellisMerges merges_;
  float rate_weight_;
  std::vector<Branches> branches_;  // (rows)
  std::vector<float> costs_;        // (rows + 1, states): of the best path to each state before each row
};

}  // namespace thimble
