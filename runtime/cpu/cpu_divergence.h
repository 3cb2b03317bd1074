// cpu_divergence.h: DivergencePass on the CPU in float32, one sequence after another: the reference for every device.
#pragma once

#include <memory>

#include "runtime/ops/divergence_pass.h"
#include "runtime/ops/token_sequences.h"

namespace thimble {

// `sequences` must outlive the result.
std::unique_ptr<DivergencePass> make_cpu_divergence_pass(std::shared_ptr<const Weights> teacher, Weights student,
                                                         const TokenSequences& sequences);

}  // namespace thimble
