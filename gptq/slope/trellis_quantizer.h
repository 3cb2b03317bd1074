// trellis_quantizer.h: the codes of one column, chosen together: Viterbi along its rows (Marcellin and Fischer 1990),
// from both ends.
//   cost = sum over rows of (target - level)^2 + rate_weight * bits(level)
// is the least that any path of the trellis has, but for the rounding of costs (path_cost()). Without a trellis each
// row has its own least cost.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gptq/slope/path_steps.h"
#include "gptq/slope/rate_model.h"
#include "runtime/codes/trellis.h"

namespace thimble {

class TrellisQuantizer {
 public:
  // Scratch for columns of at most `most_rows` rows, with a trellis at most kTrellisRows. rate_weight >= 0 is in
  // squared levels per bit. A path starts from state 0.
  TrellisQuantizer(Trellis trellis, double rate_weight, int64_t most_rows);

  // targets: (rows) in levels, finite; classes: (rows) of the rate model. Fills levels (rows), each a level of the
  // state that those above it lead to, of a code in [-kMaxSteppedCode, kMaxSteppedCode].
  void quantize(std::span<const double> targets, std::span<const uint8_t> classes, std::span<int32_t> levels);

 private:
  // The best levels of one row, by residue (trellis_branches.h), and what they add to a path.
  struct Branches {
    int32_t levels[kBranches];
    BranchCosts costs;
  };

  Branches branches(double target, const LevelCosts& cost) const;
  // Stores what paths_ remember, which then remember their own states.
  void begin_group(uint8_t* remembered);
  // Paths from the first row to before `meeting`, or from there on to the end: (states).
  const std::vector<uint32_t>& paths_to(int64_t meeting);
  const std::vector<uint32_t>& paths_from(int64_t meeting, int64_t rows);
  // The levels of a group's rows, which lead from state `first` to state `last`.
  void levels_between(uint32_t first, uint32_t last, std::span<const Branches> branches,
                      std::span<int32_t> levels) const;

  Trellis trellis_;
  float rate_weight_, cost_scale_;
  std::vector<Branches> branches_;      // (rows), and those that fill the last group
  std::vector<uint8_t> remembered_;     // (groups, states): what paths to or from a state at a group's end remember
  std::vector<uint32_t> paths_, next_;  // (states)
  std::vector<uint32_t> met_;           // (states): those to where paths meet
  // (states), of a group: where even codes lead; parities of the codes, by row's bit, that lead this far from there
  std::vector<uint32_t> even_ends_, parities_;
};

}  // namespace thimble
