// cuda_models.h: models on a CUDA device. Builds without CUDA have these functions too; they throw.
#pragma once

#include <memory>
#include <string>

#include "runtime/base/progress.h"
#include "runtime/cuda/kernels/cuda_devices.h"
#include "runtime/ops/divergence_pass.h"
#include "runtime/ops/generator.h"
#include "runtime/ops/numeric_policy.h"
#include "runtime/ops/scorer.h"
#include "runtime/ops/weights.h"

namespace thimble {

// Each copies the weights to the device, rounded as the mode says; batches are as large as its memory allows
// (cuda_memory.h). A DeviceError when the build, the device or its memory cannot.
std::unique_ptr<Scorer> make_cuda_scorer(std::shared_ptr<const Weights> weights, const CudaPlace& place,
                                         Numerics numerics, int64_t context);
std::unique_ptr<Generator> make_cuda_generator(std::shared_ptr<const Weights> weights, const CudaPlace& place,
                                               Numerics numerics, int64_t context, int64_t sequences);
// In float32. `sequences` must outlive the result.
std::unique_ptr<DivergencePass> make_cuda_divergence_pass(std::shared_ptr<const Weights> teacher,
                                                          std::shared_ptr<const Weights> student,
                                                          const TokenSequences& sequences, const CudaPlace& place,
                                                          Progress& progress);

// The device's model, "NVIDIA H200": results are the same bits on all devices of one model.
std::string cuda_arithmetic(int ordinal);

}  // namespace thimble
