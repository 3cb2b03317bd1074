// slope_bridge.h: fills a byte limit where sizes leap. Bytes do not follow the common step without leaps: below some
// step whole matrices have no codes but 0, and rows change their steps together. From an artifact on one side of the
// limit the common step is moved until there is one on the other side. Between those two leads a path along which bytes
// change by as little as one likes:
//   1. the matrices of the one, then those of the other, first the ones whose bits bring most;
//   2. of the matrix at which the limit is crossed, all steps between those of the two;
//   3. its rate weight, from one at which all its codes are 0 down to none: single codes change;
//   4. where its steps alone would take too much: the same with a single step for the whole matrix.
// On each, a bracket of real artifacts [fits, does not fit] is halved, so bytes need not be monotone anywhere.
#pragma once

#include <cstdint>

#include "quantizer/console/console.h"
#include "quantizer/methods/encoder.h"
#include "quantizer/methods/slope/slope_fill.h"
#include "quantizer/methods/slope/slope_outcome.h"

namespace thimble {

class SlopeBridge {
 public:
  // All must outlive it. Steps are no shorter than at `lowest_log2_c`.
  SlopeBridge(const SlopeLayers& layers, const EncodeOptions& encode, Encoder& encoder, double lowest_log2_c,
              StageTimes& times, Progress& progress)
      : layers_(layers),
        encode_(encode),
        encoder_(encoder),
        lowest_log2_c_(lowest_log2_c),
        times_(times),
        progress_(progress) {}

  // `limit_bytes`: no less than the model takes with all codes 0 and its other tensors as they are in `outcome`; else
  // it may stay above. The outcome becomes filled (is_filled()), or the largest found within the limit, with its
  // fill_reason. `changes` are made to every new solution. True when codes have changed.
  bool run(uint64_t limit_bytes, const RowChanges& changes, SlopeOutcome& outcome) const;

  // Encodes of a run: this many with all matrices solved anew, this many with one, and log2 of the number of matrices.
  static constexpr int kMaxMoves = 12, kMaxSolves = 96;

 private:
  const SlopeLayers& layers_;
  const EncodeOptions& encode_;
  Encoder& encoder_;
  double lowest_log2_c_;
  StageTimes& times_;
  Progress& progress_;
};

}  // namespace thimble
