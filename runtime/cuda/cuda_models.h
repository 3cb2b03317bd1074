// cuda_models.h: models on a CUDA device, as hosts see them. Builds without CUDA have these functions too
// (cuda_models_stub.cpp); there each is a DeviceError.
#pragma once

#include <memory>

#include "runtime/base/progress.h"
#include "runtime/cuda/kernels/cuda_devices.h"
#include "runtime/ops/divergence_pass.h"
#include "runtime/ops/generator.h"
#include "runtime/ops/numeric_policy.h"
#include "runtime/ops/scorer.h"
#include "runtime/ops/weights.h"

namespace thimble {

// All take weights that are not rounded, copy and round them to the device as the mode has them (round_weights()), and
// run batches as large as the device's memory allows (cuda_memory.h). What the device or its memory cannot is a
// DeviceError.

// `context`: no window is longer.
std::unique_ptr<Scorer> make_cuda_scorer(std::shared_ptr<const Weights> weights, const CudaPlace& place,
                                         Numerics numerics, int64_t context);

// `context`: of calibration sequences, the length; of a text, no more tokens than these with its prompt. `sequences`:
// the most that calibration will ask for.
std::unique_ptr<Generator> make_cuda_generator(std::shared_ptr<const Weights> weights, const CudaPlace& place,
                                               Numerics numerics, int64_t context, int64_t sequences);

// In float32 whatever the device's numerics. `sequences` must outlive the result.
std::unique_ptr<DivergencePass> make_cuda_divergence_pass(std::shared_ptr<const Weights> teacher,
                                                          std::shared_ptr<const Weights> student,
                                                          const TokenSequences& sequences, const CudaPlace& place,
                                                          Progress& progress);

}  // namespace thimble
