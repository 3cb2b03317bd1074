// models.h: models on the device that computes them, ready to score, to generate and to be compared.
#pragma once

#include <memory>

#include "runtime/base/progress.h"
#include "runtime/device/device.h"
#include "runtime/device/ranks.h"
#include "runtime/ops/divergence_pass.h"
#include "runtime/ops/generator.h"
#include "runtime/ops/scorer.h"

namespace thimble {

// On the CPU or on all of the CUDA devices, in the device's numerics; shared among the ranks, which must outlive the
// result. `weights` come unrounded.
std::unique_ptr<Scorer> make_scorer(const std::shared_ptr<const Weights>& weights, const Device& device,
                                    int64_t context, Ranks& ranks);
// For `sequences` calibration sequences at a time at most, or one text.
std::unique_ptr<Generator> make_generator(const std::shared_ptr<const Weights>& weights, const Device& device,
                                          int64_t context, int64_t sequences, Ranks& ranks);

// The same of this process alone.
std::unique_ptr<Scorer> make_scorer(const std::shared_ptr<const Weights>& weights, const Device& device,
                                    int64_t context);
std::unique_ptr<Generator> make_generator(const std::shared_ptr<const Weights>& weights, const Device& device,
                                          int64_t context, int64_t sequences);

// In float32 whatever the device's numerics; of several CUDA devices, the first. `sequences` must outlive the result.
// Progress on CUDA devices: one stage, in sequences.
std::unique_ptr<DivergencePass> make_divergence_pass(const std::shared_ptr<const Weights>& teacher,
                                                     const std::shared_ptr<const Weights>& student,
                                                     const TokenSequences& sequences, const Device& device,
                                                     Progress& progress);

}  // namespace thimble
