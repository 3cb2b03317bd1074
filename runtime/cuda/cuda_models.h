// cuda_models.h: models on a CUDA device, as hosts see them. Builds without CUDA have these functions too
// (cuda_models_stub.cpp); there each is a DeviceError.
#pragma once

#include <algorithm>
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
// run batches as large as the device's memory allows. What the device or its memory cannot is a DeviceError.
//
// The plan of each says how large, by making it without memory (counted_allocations()); a DeviceError where not even a
// batch of one fits. `usable_bytes`: as usable_memory() has it before anything is made.

// `context`: no window is longer.
std::unique_ptr<Scorer> make_cuda_scorer(std::shared_ptr<const Weights> weights, const CudaPlace& place,
                                         Numerics numerics, int64_t context);

// Up to `windows` windows of `context` inputs at a time: cuda_windows_per_batch().
MemoryPlan plan_scoring(const std::shared_ptr<const Network>& network, Numerics numerics, int64_t context,
                        int64_t windows, uint64_t usable_bytes);

// `context`: of calibration sequences, the length; of a text, no more tokens than these with its prompt. `sequences`:
// the most that calibration will ask for.
std::unique_ptr<Generator> make_cuda_generator(std::shared_ptr<const Weights> weights, const CudaPlace& place,
                                               Numerics numerics, int64_t context, int64_t sequences);

// Up to `sequences` calibration sequences of `length` tokens at a time.
MemoryPlan plan_generation(const std::shared_ptr<const Network>& network, Numerics numerics, int64_t length,
                           int64_t sequences, uint64_t usable_bytes);
// One text of at most `context` tokens, `prompt` of them given.
MemoryPlan plan_text(const std::shared_ptr<const Network>& network, Numerics numerics, int64_t context, int64_t prompt,
                     uint64_t usable_bytes);

// In float32, but with products in bf16 where `numerics` is bf16. `sequences` must outlive the result.
std::unique_ptr<DevicePass> make_cuda_divergence_pass(std::shared_ptr<const Weights> teacher,
                                                      std::shared_ptr<const Weights> student,
                                                      const TokenSequences& sequences, const CudaPlace& place,
                                                      Numerics numerics, Progress& progress,
                                                      const DivergenceOptions& options = {});
// What the teacher's head reads is kept of as many `sequences` as the options say, passes run over a few at a time.
MemoryPlan plan_divergence(const std::shared_ptr<const Network>& network, Numerics numerics, int64_t length,
                           int64_t sequences, uint64_t usable_bytes, const DivergenceOptions& options = {});

// Sequences of `length` tokens at a time that fill a device in passes forward and backward: two waves of tiles on the
// largest ones.
constexpr int64_t gradient_batch(int64_t length) { return std::max<int64_t>(1, 16384 / length); }

}  // namespace thimble
