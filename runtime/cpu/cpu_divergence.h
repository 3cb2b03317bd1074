// cpu_divergence.h: DivergencePass on the CPU in float32, one sequence after another: the reference for every device.
#pragma once

#include <memory>

#include "runtime/base/progress.h"
#include "runtime/ops/divergence_pass.h"
#include "runtime/ops/token_sequences.h"

namespace thimble {

// `sequences` must outlive the result. Progress: one stage, in sequences.
std::unique_ptr<DivergencePass> make_cpu_divergence_pass(const Weights& teacher, Weights student,
                                                         const TokenSequences& sequences, Progress& progress);

}  // namespace thimble
