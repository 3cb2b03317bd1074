// slope_fill.h: the last few thousandths of a byte limit. A model solved again at another c moves in leaps, and what
// distillation takes is known only afterwards; so single matrices of an artifact are solved again with slightly shorter
// or longer steps. The slope of their loss is no longer quite that of the others, which costs less than one differing
// solve does by chance.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "quantizer/console/console.h"
#include "quantizer/methods/encoder.h"
#include "quantizer/methods/slope/slope_outcome.h"

namespace thimble {

// A row step's distance from where the solver put it, by tensor: what distillation made of it.
using RowChanges = std::map<std::string, std::vector<int>>;

// `tuned`: the same codes with other row steps.
RowChanges row_changes(const QuantizedModel& solved, const QuantizedModel& tuned);

// Makes them to a new solution. A matrix without any code but 0 stays without steps.
void change_rows(const RowChanges& changes, QuantizedTensor& tensor);

// What counts as filled: at most `limit_bytes`, at least kFill of it.
constexpr double kFill = 0.999;
bool is_filled(uint64_t bytes, uint64_t limit_bytes);

class SlopeFill {
 public:
  SlopeFill(const SlopeLayers& layers, const EncodeOptions& encode, Encoder& encoder, StageTimes& times,
            Progress& progress)
      : layers_(layers), encode_(encode), encoder_(encoder), times_(times), progress_(progress) {}

  // An artifact above the limit, or below kFill of it, becomes one in between if that takes no more than kMaxSolves
  // matrices; else the nearest found, within the limit rather than above. `changes` are made to every new solution.
  // True when codes have changed.
  bool run(uint64_t limit_bytes, const RowChanges& changes, SlopeOutcome& outcome) const;

  static constexpr int kMaxSolves = 16;

 private:
  const SlopeLayers& layers_;
  const EncodeOptions& encode_;
  Encoder& encoder_;
  StageTimes& times_;
  Progress& progress_;
};

}  // namespace thimble
