// cuda_memory.h: how much device memory a run takes at its peak, and how many windows or sequences at a time that
// leaves room for. Follows from the network alone: known, and printed, before anything is allocated. In: network,
// shapes, usable bytes.  Out: the largest batch that fits and what it takes, or a DeviceError. Not counted: the
// driver's own context and kernels, which are no part of the usable bytes either.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/cuda/kernels/cuda_devices.h"
#include "runtime/ops/numeric_policy.h"

namespace thimble {

struct Network;

struct MemoryUse {
  std::string what;  // "weights"
  uint64_t bytes = 0;
};

// Of one device.
struct MemoryPlan {
  std::string step;             // "scoring"
  std::string unit;             // "window"
  int64_t unit_tokens = 0;      // of each
  int64_t batch = 0;            // units at a time
  std::vector<MemoryUse> uses;  // with that batch

  uint64_t bytes() const;
  // "scoring: 880,803,840 B on each device at most: weights 60,000,000 B, ...; 32 windows of 2048 tokens at a time"
  std::string text() const;
};

Json to_json(const MemoryPlan& plan);

// What of `free_bytes` may be planned with: all but a reserve for the allocator's and the driver's own needs, and at
// most `limit_bytes` (kNoMemoryLimit: no other bound).
uint64_t usable_memory(uint64_t free_bytes, uint64_t limit_bytes);

// Of one device, and of the scarcest of several.
uint64_t usable_memory(const CudaPlace& place);
uint64_t usable_memory(std::span<const int> ordinals, uint64_t limit_bytes);

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
// memory at once; see hessian_tree.h.
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

// What passes for statistics of losses keep, and for divergences.
struct PassOptions;
PassOptions loss_statistics_options();
PassOptions divergence_options();

}  // namespace thimble
