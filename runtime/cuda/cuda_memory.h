// cuda_memory.h: plans of the memory that passes take on a CUDA device (memory_plan.h), from what they allocate
// (cuda_sizes.h), in builds without CUDA too. In: network, shapes, usable bytes.  Out: the largest batch that fits and
// what it takes, or a DeviceError.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/base/memory_plan.h"
#include "runtime/cuda/kernels/cuda_devices.h"
#include "runtime/ops/network.h"
#include "runtime/ops/numeric_policy.h"
#include "runtime/ops/pass_plan.h"

namespace thimble {

// Of one device.
uint64_t usable_memory(const CudaPlace& place);

// All plans are DeviceErrors that name what is needed at least, and what is usable, when not even a batch of one fits.

// Up to `windows` windows of `context` inputs at a time: cuda_windows_per_batch().
MemoryPlan plan_scoring(const Network& network, Numerics numerics, int64_t context, int64_t windows,
                        uint64_t usable_bytes);

// Up to `sequences` calibration sequences of `length` tokens at a time.
MemoryPlan plan_generation(const Network& network, Numerics numerics, int64_t length, int64_t sequences,
                           uint64_t usable_bytes);

// One text of at most `context` tokens, `prompt` of them given.
MemoryPlan plan_text(const Network& network, Numerics numerics, int64_t context, int64_t prompt, uint64_t usable_bytes);

// Hessians of up to `sequences` sequences of `length` tokens at a time, of which `live_sums` sets of all layers are in
// memory at once; see statistics_sum.h.
MemoryPlan plan_hessians(const Network& network, Numerics numerics, int64_t length, int64_t sequences,
                         int64_t live_sums, uint64_t usable_bytes);

// What layers read in two models (input_pairs.h), up to `most` of `sequences` sequences of `length` tokens at a time.
// `keeps`: activations of all sequences stay in memory from layer to layer.
MemoryPlan plan_input_pairs(const Network& network, Numerics numerics, int64_t length, int64_t sequences, int64_t most,
                            bool keeps, uint64_t usable_bytes);

// With `keeps`, in half of the usable memory: the other half is for those who solve meanwhile. None where that has no
// room.
std::optional<MemoryPlan> plan_kept_input_pairs(const Network& network, Numerics numerics, int64_t length,
                                                int64_t sequences, int64_t most, uint64_t usable_bytes);

// Forward and backward passes over up to `sequences` sequences of `length` tokens at a time, but no more than fill a
// device; always in fp32.
MemoryPlan plan_gradients(const Network& network, int64_t length, int64_t sequences, uint64_t usable_bytes);

// The divergence of a student from its teacher, and its gradients (divergence_pass.h): the teacher's logits of all
// `sequences` are kept, passes run over a few sequences at a time; always in fp32.
MemoryPlan plan_divergence(const Network& network, int64_t length, int64_t sequences, uint64_t usable_bytes);

// Most bytes of products that wait to be added to Hessians, when memory is plentiful, and as planned.
constexpr uint64_t kMostGramBytes = uint64_t{1} << 30;
uint64_t gram_bytes(const Network& network, int64_t length, int64_t sequences);

// What backward passes keep for statistics of losses, and for divergences.
PassOptions loss_statistics_options();
PassOptions divergence_options();

}  // namespace thimble
