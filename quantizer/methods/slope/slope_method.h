// slope_method.h: steps of equal slope for every weight, trellis-coded: the finest common step whose artifact fits
// (slope_search.h), cross terms and distillation.
#pragma once

#include <functional>
#include <memory>

#include "quantizer/methods/effort.h"
#include "quantizer/methods/method.h"
#include "quantizer/methods/slope/slope_search.h"
#include "runtime/families/model_weights.h"

namespace thimble {

// Bits per byte of a model, with the hash of its values. Collective.
using ModelScore = std::function<double(const RunnableModel&, uint64_t key, const SharedWork&)>;

// A model that somebody else runs: what the program does with one of its own. Null: it is not done.
struct OutsideModel {
  PairedModels* pairs = nullptr;  // for cross terms
  Teacher* teacher = nullptr;     // for learning of codes, and distillation
};

struct SlopeMethodOptions {
  SlopeOptions slope;
  int64_t min_elements = 0;  // matrices of at most so many stay fp16
  Effort effort = Effort::kDefault;
  int64_t cross_sequences = 0;            // that cross terms read, at most
  GainTunerOptions tuner;                 // 0 steps: nothing is distilled
  CodeLearnerOptions codes;               // 0 steps: no codes are learned
  bool learns_rows = false;               // gains of rows with them
  bool is_given = false;                  // somebody wrote the tokens
  std::optional<double> data_share = 0;   // of both: DivergenceOptions; none: fitted_data_share()
  std::optional<double> temperature = 1;  // likewise; none: fitted_temperature()
  SlopeTarget target;                     // its limit is that of fit()
  ModelScore bits_per_byte;               // for a target that is a gap
  EncodeOptions encode;
  OutsideModel outside;
  bool knows_layers = true;  // else a file of Hessians decides which are solved, and bounds before that are low
};

std::unique_ptr<Method> make_slope_method(const SlopeMethodOptions& options);

}  // namespace thimble
