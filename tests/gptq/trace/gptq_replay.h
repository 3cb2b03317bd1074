// gptq_replay.h: judges a solution by walking through it, whoever found it: was every code the nearest one, given the
// codes before it? Holds also after a tie that was decided otherwise, where comparing codes says nothing any more.
#pragma once

#include "gptq/factor/hessian_factor.h"
#include "gptq/trace/gptq_solver.h"
#include "runtime/tensor/matrix.h"

namespace thimble {

struct GptqReplay {
  // Over all weights, how much further than the nearest code (in NVFP4, else half a step) the code lies from its
  // clamped argument, in units of the scale: at most rounding for a right solution, about 1e-9 or less for
  // well-conditioned Hessians.
  double worst_excess = 0;
  double weight_mse = 0;     // of the codes, added in the solver's order
  double weighted_loss = 0;  // of the codes
};

GptqReplay replay_gptq(ConstMatrixView weights, const HessianFactor& factor, const RowScaledCodes& codes);
GptqReplay replay_gptq(ConstMatrixView weights, const HessianFactor& factor, const Nvfp4Codes& codes);

}  // namespace thimble
