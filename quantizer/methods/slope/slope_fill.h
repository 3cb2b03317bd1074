// slope_fill.h: what artifacts of the method `slope` are on their way to a byte limit, and the last part of that way.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "gptq/slope/small_steps.h"
#include "quantizer/console/console.h"
#include "quantizer/methods/method.h"
#include "quantizer/methods/slope/slope_layers.h"
#include "runtime/codes/quantized_model.h"

namespace thimble {

// What solves and encodes. All must outlive it.
struct SlopeTools {
  const SlopeLayers& layers;
  EncodeOptions encode;
  Encoder& encoder;
  StageTimes& times;
  Progress& progress;
  SmallSteps small = {};  // to which small tensors are rounded

  // For artifacts with `options`: a matrix is packed while others are solved.
  std::vector<SlopeMatrix> solve(const SlopeSettings& settings, const EncodeOptions& options, Progress& shown) const {
    return times.time("solve", [&] { return layers.solve(settings, shown, packs(options)); });
  }
  OnSolved packs(const EncodeOptions& options) const {
    return [&to = encoder, options](const SlopeMatrix& solved) { to.begin(solved.tensor, options); };
  }
};

// Its log2_c is the common one, from which `settings` start. `fill_reason`: empty where a limit is filled, and without
// one.
struct SlopeOutcome : FitReport {
  SlopeSettings settings;  // of all matrices
  QuantizedModel model;
  uint64_t bytes = 0;   // of its artifact
  ByteVector artifact;  // once the outcome is the last
  std::map<std::string, SlopeReport> reports;

  QuantizedTensor& tensor(const std::string& name) {
    return *std::ranges::find(model.tensors, name, &QuantizedTensor::name);
  }
};

// A row step's distance from where the solver put it, by tensor: what distillation made of it.
using RowChanges = std::map<std::string, std::vector<int>>;

// `tuned`: the same codes with other row steps.
RowChanges row_changes(const QuantizedModel& solved, const QuantizedModel& tuned);

// Makes them to a new solution. A matrix without any code but 0 stays without steps.
void change_rows(const RowChanges& changes, QuantizedTensor& tensor);

// What counts as filled: at most `limit_bytes`, at least kFill of it.
constexpr double kFill = 0.999;
bool is_filled(uint64_t bytes, uint64_t limit_bytes);

// The last few thousandths of a limit. A model solved again at another c moves in leaps, and what distillation takes is
// known only afterwards; so single matrices of an artifact are solved again with slightly shorter or longer steps. The
// slope of their loss is no longer quite that of the others, which costs less than one differing solve does by chance.
// An artifact above the limit, or below kFill of it, becomes one in between if that takes no more than 16 solves of a
// matrix; else the nearest found, within the limit rather than above. `changes` are made to every new solution. True
// when codes have changed.
bool fill_by_shifts(const SlopeTools& tools, uint64_t limit_bytes, const RowChanges& changes, SlopeOutcome& outcome);

// Fills a limit where sizes leap. Bytes do not follow the common step without leaps: below some step whole matrices
// have no codes but 0, and rows change their steps together. From an artifact on one side of the limit the common step
// is moved until there is one on the other side. Between those two leads a path along which bytes change by as little
// as one likes:
//   1. the matrices of the one, then those of the other, first the ones whose bits bring most;
//   2. of the matrix at which the limit is crossed, all steps between those of the two;
//   3. its rate weight, from one at which all its codes are 0 down to none: single codes change;
//   4. where its steps alone would take too much: the same with a single step for the whole matrix.
// On each, a bracket of real artifacts [fits, does not fit] is halved, so bytes need not be monotone anywhere.
// `limit_bytes`: no less than the model takes with all codes 0 and its other tensors as they are in `outcome`; else it
// may stay above. The outcome becomes filled (is_filled()), or the largest found within the limit, with its
// fill_reason. `changes` are made to every new solution. True when codes have changed. Encodes: 12 with all matrices
// solved anew, 96 with one, and log2 of the number of matrices.
bool bridge_limit(const SlopeTools& tools, uint64_t limit_bytes, const RowChanges& changes, SlopeOutcome& outcome);

}  // namespace thimble
