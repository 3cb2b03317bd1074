// slope_outcome.h: an artifact of the method `slope` on its way to a target.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "quantizer/methods/method.h"
#include "quantizer/methods/slope/distill.h"
#include "quantizer/methods/slope/slope_layers.h"
#include "runtime/codes/quantized_model.h"

namespace thimble {

struct SlopeOutcome {
  double log2_c = 0, shrinkage = 0;  // the common ones, from which `settings` start
  SlopeSettings settings;            // of all matrices
  QuantizedModel model;
  ByteVector artifact;
  std::map<std::string, SlopeReport> reports;
  int64_t encodes = 0;                   // artifacts of a whole solve on the way
  std::vector<EncodedPoint> encoded;     // these, in the order of the search
  std::optional<DistillReport> distill;  // where it was tried
  std::string fill_reason;               // why a limit is not filled; empty where it is, and without one
};

}  // namespace thimble
