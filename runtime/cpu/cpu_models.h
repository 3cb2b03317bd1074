// cpu_models.h: scoring, generation and the comparison of two models on the CPU: the reference for every device.
#pragma once

#include <memory>

#include "runtime/ops/divergence_pass.h"
#include "runtime/ops/generator.h"
#include "runtime/ops/numeric_policy.h"
#include "runtime/ops/scorer.h"
#include "runtime/ops/weights.h"

namespace thimble {

// In any numeric mode, one window after another.
std::unique_ptr<Scorer> make_cpu_scorer(std::shared_ptr<const Weights> weights, Numerics numerics, int64_t context);

// In any numeric mode: sequences grow together, token by token, over cached keys and values.
std::unique_ptr<Generator> make_cpu_generator(std::shared_ptr<const Weights> weights, Numerics numerics,
                                              int64_t context);

// How many calibration sequences run as one batch: as many as their key/value caches fit in kMaxCacheBytes, at least
// one, spread evenly. Depends on the model and options alone, never on the machine.
constexpr uint64_t kMaxCacheBytes = uint64_t{1} << 30;
int64_t calibration_batch(const Network& network, const CalibrationOptions& options);

// One sequence after another, in float32 but for products with matrices and sums of their gradients, whose arithmetic
// is chosen. `sequences` must outlive the result.
std::unique_ptr<DevicePass> make_cpu_divergence_pass(std::shared_ptr<const Weights> teacher, Weights student,
                                                     const TokenSequences& sequences,
                                                     const DivergenceOptions& options = {},
                                                     ProductArithmetic arithmetic = ProductArithmetic::kFloat32);

}  // namespace thimble
