// hessian_groups.cpp: see hessian_groups.h.
#include "gptq/statistics/hessian_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "gptq/statistics/stored_statistics.h"
#include "runtime/base/count_text.h"
#include "runtime/ops/logit_pieces.h"
#include "runtime/ops/pass_plan.h"

namespace thimble {
namespace {

// Float64 triangles: a part's, the sum's, and the sum packed for the work folder.
constexpr uint64_t kTriangles = 3;
// Stored Hessians may take this share of the memory.
constexpr uint64_t kStoredShare = 8;

uint64_t triangle_bytes(int64_t columns) {
  return static_cast<uint64_t>(columns) * static_cast<uint64_t>(columns + 1) / 2 * sizeof(double);
}

uint64_t weight_bytes(const Network& network) {
  int64_t weights = 0;
  for (const Parameter& parameter : network.parameters) weights += element_count(parameter.shape);
  return static_cast<uint64_t>(weights) * sizeof(float);
}

uint64_t activation_bytes(const Network& network, int64_t length, bool with_loss) {
  const PassPlan plan = plan_pass(network, {.has_backward = with_loss});
  const int64_t width = std::accumulate(plan.slot_widths.begin(), plan.slot_widths.end(), int64_t{0});
  const int64_t logits =
      with_loss ? std::min(logit_rows(network.vocabulary()), length) * network.vocabulary() : int64_t{0};
  return static_cast<uint64_t>(width * length + logits) * sizeof(float);
}

}  // namespace

uint64_t collecting_bytes(const Network& network, std::span<const LinearInput> inputs) {
  uint64_t triangles = 0, widest = 0;
  for (const LinearInput& input : inputs) {
    const int64_t columns = network.width_of(input.value);
    triangles += triangle_bytes(columns);
    widest = std::max(widest, static_cast<uint64_t>(columns));
  }
  return kTriangles * triangles + widest * widest * sizeof(float);
}

HessianGroups group_hessians(const Network& network, uint64_t other_bytes, uint64_t usable_bytes) {
  const uint64_t most = usable_bytes > other_bytes ? usable_bytes - other_bytes : 0;
  HessianGroups result{{{}}, true};
  uint64_t stored = 0;
  for (const LinearInput& input : network.linear_inputs()) {
    std::vector<LinearInput>* group = &result.groups.back();
    group->push_back(input);
    if (group->size() > 1 && collecting_bytes(network, *group) > most) {
      group->pop_back();
      result.groups.push_back({input});
    }
    stored += StoredHessian::float_bytes(network.width_of(input.value));
  }
  result.fit_in_memory = stored <= usable_bytes / kStoredShare;
  return result;
}

uint64_t host_pass_bytes(const Network& network, int64_t length, bool with_loss) {
  return weight_bytes(network) + activation_bytes(network, length, with_loss);
}

MemoryPlan plan_host_statistics(const Network& network, int64_t length, bool with_loss, uint64_t usable_bytes) {
  const HessianGroups plan = group_hessians(network, host_pass_bytes(network, length, with_loss), usable_bytes);
  uint64_t most = 0;
  for (const auto& group : plan.groups) most = std::max(most, collecting_bytes(network, group));
  return {"collecting statistics",
          "sequence",
          length,
          1,
          {{"weights", weight_bytes(network)},
           {"activations", activation_bytes(network, length, with_loss)},
           {fmt::format("Hessians in {}", counted(plan.groups.size(), "pass", "passes")), most}},
          /*is_host=*/true};
}

}  // namespace thimble
