// cross_terms.h: the method `slope` layer by layer, in the order in which the model runs them: each layer with the
// Hessian of what it reads from those quantized before it, and making up for what they did to it
// (gptq/factor/input_pairs.h). All other matrices are solved as ever, first.
#pragma once

#include "gptq/factor/input_pairs.h"
#include "quantizer/console/console.h"
#include "quantizer/methods/slope/slope_layers.h"
#include "runtime/codes/quantized_model.h"

namespace thimble {

class CrossTermSolver {
 public:
  // `fixed`: the model with all tensors but those of `layers`. `sequences`: how many of `tokens` are read, at most. All
  // must outlive the solver.
  CrossTermSolver(std::shared_ptr<const Weights> original, const QuantizedModel& fixed, const SlopeLayers& layers,
                  const TokenSequences& tokens, int64_t sequences, const Device& device, StageTimes& times);

  // As SlopeLayers::solve(), which it is but for the linear layers of blocks. Both models run once, layer by layer, or
  // again for each input of linear layers (make_input_pairs()).
  std::vector<SlopeMatrix> solve(double log2_c, double shrinkage, Progress& progress) const;

 private:
  std::shared_ptr<const Weights> quantized_so_far(const std::vector<SlopeMatrix>& solved) const;

  const std::shared_ptr<const Weights> original_;
  const QuantizedModel& fixed_;
  const SlopeLayers& layers_;
  const TokenSequences& tokens_;
  const int64_t sequences_;
  const Device& device_;
  StageTimes& times_;
};

}  // namespace thimble
