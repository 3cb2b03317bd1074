// cross_terms.h: the method `slope` layer by layer, in the order in which the model runs them: each layer with the
// Hessian of what it reads from those quantized before it, and making up for what they did to it
// (gptq/factor/input_pairs.h). All other matrices are solved as ever, first.
#pragma once

#include "gptq/factor/input_pairs.h"
#include "quantizer/console/console.h"
#include "quantizer/methods/slope/slope_layers.h"
#include "runtime/codes/quantized_model.h"

namespace thimble {

struct CrossTerms {
  std::shared_ptr<const Weights> original;
  const QuantizedModel& fixed;  // the model with all tensors but those of `layers`
  const SlopeLayers& layers;
  const TokenSequences& tokens;
  int64_t sequences;  // how many of `tokens` are read, at most
  const Device& device;
  StageTimes& times;

  // As SlopeLayers::solve(), which it is but for the linear layers of blocks. Both models run once, layer by layer, or
  // again for each input of linear layers (make_input_pairs()); not before the first layer that is not kept.
  std::vector<SlopeMatrix> solve(double log2_c, double shrinkage, Progress& progress) const;
};

}  // namespace thimble
