// hessian_groups.cpp: see hessian_groups.h.
#include "gptq/statistics/hessian_groups.h"

#include <fmt/format.h>

#include <algorithm>

#include "gptq/statistics/statistics_sum.h"
#include "gptq/statistics/stored_statistics.h"
#include "runtime/base/count_text.h"
#include "runtime/cpu/cpu_plans.h"

namespace thimble {
namespace {

// Stored Hessians may take this share of the memory.
constexpr uint64_t kStoredShare = 8;

// Groups leave this share of a device free: what other programs take before their turn comes, and larger batches.
constexpr uint64_t kFreeShare = 8;

uint64_t triangle_bytes(int64_t columns) {
  return static_cast<uint64_t>(columns) * static_cast<uint64_t>(columns + 1) / 2 * sizeof(double);
}

uint64_t activation_bytes(const Network& network, int64_t length, bool with_loss) {
  return with_loss ? cpu_gradient_bytes(network, length, /*for_gains=*/false) : cpu_pass_bytes(network, length, length);
}

uint64_t stored_bytes(const Network& network, std::span<const LinearInput> inputs) {
  uint64_t bytes = 0;
  for (const LinearInput& input : inputs) bytes += StoredHessian::float_bytes(network.width_of(input.value));
  return bytes;
}

// Of the input of the output head, which is collected with the loss.
uint64_t head_bytes(const Network& network) { return 2 * triangle_bytes(network.matrix(network.head.weight).columns); }

}  // namespace

// The last sum grows one by one, as a pass meets the inputs, each with the products that are added to it.
uint64_t collecting_bytes(const Network& network, std::span<const LinearInput> inputs, uint64_t sums) {
  uint64_t triangles = 0, most = 0;
  for (const LinearInput& input : inputs) {
    const auto columns = static_cast<uint64_t>(network.width_of(input.value));
    triangles += triangle_bytes(network.width_of(input.value));
    most = std::max(most, triangles + columns * columns * sizeof(float));
  }
  return (sums - 1) * triangles + most;
}

HessianGroups group_hessians(const Network& network, uint64_t other_bytes, uint64_t usable_bytes, uint64_t sums,
                             const HessiansFit& also_fits) {
  const uint64_t most = usable_bytes > other_bytes ? usable_bytes - other_bytes : 0;
  HessianGroups result{{{}}, true};
  uint64_t stored = 0;
  for (const LinearInput& input : network.linear_inputs()) {
    std::vector<LinearInput>* group = &result.groups.back();
    group->push_back(input);
    if (group->size() > 1 && (collecting_bytes(network, *group, sums) > most || (also_fits && !also_fits(*group)))) {
      group->pop_back();
      result.groups.push_back({input});
    }
    stored += stored_bytes(network, {&input, 1});
  }
  result.fit_in_memory = stored <= usable_bytes / kStoredShare;
  return result;
}

HessianGroups group_hessians(const std::shared_ptr<const Network>& network, const Device& device, int64_t sequences,
                             int64_t length, bool with_loss, uint64_t weight_bytes) {
  if (!device.is_cuda)
    return group_hessians(*network, host_pass_bytes(*network, length, with_loss, weight_bytes),
                          device.host_memory_bytes);
  const size_t parts = hessian_part_count(sequences), devices = device.ordinals.size();
  uint64_t nodes = 0;
  for (size_t d = 0; d < devices; ++d) nodes += nodes_of_device(parts, d, devices).size();
  const int64_t live = most_live_sums(parts, devices);
  const uint64_t usable = usable_memory(device), most = usable - usable / kFreeShare;
  return group_hessians(*network, weight_bytes, device.host_memory_bytes, nodes + 1, [&](auto inputs) {
    return plan_hessians(network, device.numerics, length, inputs, 1, live, kNoMemoryLimit).bytes() <= most;
  });
}

uint64_t host_pass_bytes(const Network& network, int64_t length, bool with_loss, uint64_t weight_bytes) {
  return weight_bytes + activation_bytes(network, length, with_loss) + (with_loss ? head_bytes(network) : 0);
}

uint64_t waiting_bytes(const Network& network, const HessianGroups& groups) {
  uint64_t bytes = 0;
  if (groups.fit_in_memory)
    for (const auto& group : groups.groups) bytes += stored_bytes(network, group);
  return bytes;
}

MemoryPlan plan_host_statistics(const Network& network, int64_t length, bool with_loss, uint64_t weight_bytes,
                                uint64_t usable_bytes) {
  const HessianGroups plan =
      group_hessians(network, host_pass_bytes(network, length, with_loss, weight_bytes), usable_bytes);
  uint64_t most = 0, waiting = 0;
  for (const auto& group : plan.groups) {
    most = std::max(most, waiting + collecting_bytes(network, group));
    if (plan.fit_in_memory) waiting += stored_bytes(network, group);
  }
  if (with_loss) most += head_bytes(network);
  return {"collecting statistics",
          "sequence",
          length,
          1,
          {{"weights", weight_bytes},
           {"activations", activation_bytes(network, length, with_loss)},
           {fmt::format("Hessians in {}", counted(plan.groups.size(), "pass", "passes")), most}},
          /*is_host=*/true};
}

}  // namespace thimble
