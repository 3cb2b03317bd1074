// models.h: models on the device that computes them, ready to score, to generate and to be compared.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

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
                                    int64_t context, Ranks& ranks = no_other_ranks());
// For `sequences` calibration sequences at a time at most, or one text.
std::unique_ptr<Generator> make_generator(const std::shared_ptr<const Weights>& weights, const Device& device,
                                          int64_t context, int64_t sequences, Ranks& ranks = no_other_ranks());

// In float32, with bf16 in what gradient_arithmetic() makes of that; on all of the CUDA devices and shared among the
// ranks as below.
// `sequences` and `ranks` must outlive the result. Progress on CUDA devices: one stage, in sequences. Collective.
std::unique_ptr<DivergencePass> make_divergence_pass(const std::shared_ptr<const Weights>& teacher,
                                                     const std::shared_ptr<const Weights>& student,
                                                     const TokenSequences& sequences, const Device& device,
                                                     Progress& progress, const DivergenceOptions& options = {},
                                                     Ranks& ranks = no_other_ranks());

// One model on several devices and in several processes. Each holds all of it and takes a contiguous share of the
// windows or sequences of a call; all get all results. By the contracts of Scorer and Generator these are the same bits
// for any number of devices and processes. `parts`: of this process, at least one, of the same model, context and
// arithmetic as on every other rank. score() and calibration() are collective; the other calls are this rank's own, on
// its first part. `ranks` must outlive the result. An error on one device ends the call once the others have finished
// their shares.
std::unique_ptr<Scorer> make_shared_scorer(std::vector<std::unique_ptr<Scorer>> parts, Ranks& ranks);
std::unique_ptr<Generator> make_shared_generator(std::vector<std::unique_ptr<Generator>> parts, Ranks& ranks);

// The gradients of a call are sums over at most so many parts of its sequences, added in their order, whoever computes
// them: so many devices have work. Those by gains are float64. Those by matrices are float32: each part's, from zero
// on, in the order of its sequences; the first part's are what the others' are added to, one part after the other. A
// device that is alone so needs room for two sets of them, whatever the number of parts.
constexpr int64_t kMostGradientParts = 2;
// What a rank's first device adds up, of so many of its own and so many ranks.
constexpr DivergenceOptions::Adds adds_of(size_t devices, int ranks) {
  return devices > 1 || ranks > 1 ? DivergenceOptions::Adds::kAllParts : DivergenceOptions::Adds::kOwnParts;
}
// Of passes over the same sequences and models, of which `model` is one. Parts are dealt out in turn to the passes of
// all ranks. set(), set_matrix(), gradients() and divergence() are collective. `options`: those of the passes. Each
// rank has the sums by matrices, on its first pass, which alone adds parts up. Who changes matrices there (on_device())
// does so on every rank, before set().
std::unique_ptr<DivergencePass> make_shared_divergence_pass(std::vector<std::unique_ptr<DevicePass>> parts,
                                                            const Weights& model, Ranks& ranks,
                                                            const DivergenceOptions& options = {});

}  // namespace thimble
