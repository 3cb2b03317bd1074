// hessian_groups.h: which Hessians of a model are collected together. One pass over the calibration text collects all
// of a small model; those of a large one do not fit in memory at once, and take a pass for each group of inputs.
// In: a network's inputs of linear layers, the memory there is, of the host and of CUDA devices.  Out: groups of them,
// in the order of forward passes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "runtime/base/memory_plan.h"
#include "runtime/device/device.h"
#include "runtime/ops/network.h"

namespace thimble {

struct HessianGroups {
  std::vector<std::vector<LinearInput>> groups;  // at least one; none empty but that of a network without linear layers
  // All of them, as they are stored, take a small share of the memory: they need no file.
  bool fit_in_memory = true;
};

// What the Hessians of `inputs` take of the host's memory while they are collected: `sums` sums in float64. On the CPU
// they are those over the parts so far and over a part (statistics_sum.h), or packed where they are kept; and there are
// the products that are added to a part.
uint64_t collecting_bytes(const Network& network, std::span<const LinearInput> inputs, uint64_t sums = 2);

// Whether what bounds a group besides the host's memory has room for these inputs together.
using HessiansFit = std::function<bool(std::span<const LinearInput>)>;

// `usable_bytes`: of the host's memory for all; `other_bytes`: what the model and its activations take of them; `sums`
// as collecting_bytes() has it. A group has one input at least, be there room for it or not.
HessianGroups group_hessians(const Network& network, uint64_t other_bytes, uint64_t usable_bytes, uint64_t sums = 2,
                             const HessiansFit& also_fits = nullptr);

// Those that `device` collects together over `sequences` sequences of `length` tokens. CUDA devices each have room for
// the sums of their parts beside the model and the activations of one sequence at least, an eighth of what they have
// left over, and the host for the sums that they hand over. `with_loss`: with the loss's gradients in the same pass, on
// the CPU.
HessianGroups group_hessians(const std::shared_ptr<const Network>& network, const Device& device, int64_t sequences,
                             int64_t length, bool with_loss, uint64_t weight_bytes);

// What collecting takes at its peak on the CPU: weights in memory, activations of a sequence of `length` tokens with
// the loss's gradients or without them, the Hessians of the largest group, and those that wait.
MemoryPlan plan_host_statistics(const Network& network, int64_t length, bool with_loss, uint64_t weight_bytes,
                                uint64_t usable_bytes);

// Of that, weights and activations, with the head's Hessian where there are gradients.
uint64_t host_pass_bytes(const Network& network, int64_t length, bool with_loss, uint64_t weight_bytes);

// What stored Hessians (stored_statistics.h) take of memory until the end: nothing where they lie in files.
uint64_t waiting_bytes(const Network& network, const HessianGroups& groups);

}  // namespace thimble
