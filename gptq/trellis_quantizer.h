// trellis_quantizer.h: the codes of one column, chosen together: Viterbi down its rows (Marcellin and Fischer 1990).
//   cost = sum over rows of (target - level)^2 + rate_weight * bits(level)
// is the least that any path of the trellis has. Without a trellis each row has its own least cost.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gptq/rate_model.h"
#include "runtime/trellis.h"

namespace thimble {

class TrellisQuantizer {
 public:
  // Scratch for columns of at most `most_rows` rows. `rates` must outlive the quantizer; rate_weight >= 0 is in squared
  // levels per bit. A path starts from state 0.
  TrellisQuantizer(Trellis trellis, const RateTable& rates, double rate_weight, int64_t most_rows);

  // targets: (rows) in levels, finite; classes: (rows) of the rate model. Fills levels (rows), each a level of the
  // state that those above it lead to, of a code in [-kMaxSteppedCode, kMaxSteppedCode].
  void quantize(std::span<const double> targets, std::span<const uint8_t> classes, std::span<int32_t> levels);

 private:
  struct Choice {
    int32_t level;
    float cost;
  };
  // The best levels of one row, by level % 4 = set + 2 * parity of the code, and their costs less the lowest.
  struct Branches {
    int32_t levels[4];
    float costs[4];
  };

  float cost(double target, int scale_class, int32_t level) const;
  Choice choose(double target, int scale_class, int32_t nearest, int spacing) const;
  Branches branches(double target, int scale_class) const;
  // costs, next: (states)
  void add_compare_select(const float* costs, const Branches& branches, float* next) const;
  void trace_back(std::span<int32_t> levels) const;

  uint32_t states_, half_;
  uint32_t set_flip_, parity_flip_;  // of the state machine: see the top of trellis_quantizer.cpp
  const RateTable& rates_;
  float rate_weight_;
  std::vector<Branches> branches_;  // (rows)
  std::vector<float> costs_;        // (rows + 1, states): of the best path to each state before each row
};

}  // namespace thimble
