// cpu_generator.h: Generator on the CPU, in any numeric mode: sequences grow together, token by token, over cached keys
// and values.
#pragma once

#include <memory>

#include "runtime/ops/generator.h"
#include "runtime/ops/numeric_policy.h"
#include "runtime/ops/weights.h"

namespace thimble {

std::unique_ptr<Generator> make_cpu_generator(std::shared_ptr<const Weights> weights, Numerics numerics,
                                              int64_t context);

// How many calibration sequences run as one batch: as many as their key/value caches fit in kMaxCacheBytes, at least
// one, spread evenly. Depends on the model and options alone, never on the machine.
constexpr uint64_t kMaxCacheBytes = uint64_t{1} << 30;
int64_t calibration_batch(const Network& network, const CalibrationOptions& options);

}  // namespace thimble
