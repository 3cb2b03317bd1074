// quantize_plans.cpp: see quantize_plans.h.
#include "quantizer/pipeline/quantize_plans.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <set>

#include "gptq/factor/input_pairs.h"
#include "gptq/statistics/hessian_groups.h"
#include "gptq/statistics/statistics_sum.h"
#include "quantizer/methods/slope/distill.h"
#include "quantizer/methods/slope/slope_layers.h"
#include "quantizer/pipeline/calibration.h"
#include "runtime/base/parallel.h"
#include "runtime/cpu/cpu_plans.h"
#include "runtime/cuda/cuda_models.h"
#include "runtime/cuda/kernels/cuda_devices.h"
#include "runtime/device/models.h"

namespace thimble {
namespace {

// What calibration will take of each CUDA device, before any of it begins.
std::vector<MemoryPlan> plan_calibration(const QuantizeRequest& request, OpenedCheckpoint& source) {
  const std::shared_ptr<const Network>& network = source.runnable().network;
  const CalibrationOptions& options = request.calibration;
  uint64_t usable = usable_memory(request.device);
  std::vector<MemoryPlan> plans;
  size_t devices = request.device.ordinals.size(), parts = hessian_part_count(request.statistics_count());
  if (!request.given_text.is_given()) {
    auto share = static_cast<int64_t>(share_of(static_cast<size_t>(options.sequences), devices - 1, devices).size());
    plans.push_back(
        plan_generation(network, request.device.numerics, options.length, std::max<int64_t>(1, share), usable));
  }
  auto part = static_cast<int64_t>(hessian_part(request.statistics_count(), parts - 1).size());
  int64_t most = std::min(part, cuda_windows_per_batch(request.device.ordinals[0], options.length));
  const HessianGroups groups = group_hessians(network, request.device, request.statistics_count(), options.length,
                                              /*with_loss=*/false, source.weights()->owned_bytes());
  std::vector<MemoryPlan> of_groups;  // one after another
  for (const std::vector<LinearInput>& inputs : groups.groups)
    of_groups.push_back(plan_hessians(network, request.device.numerics, options.length, inputs, most,
                                      most_live_sums(parts, devices), usable));
  plans.push_back(*std::ranges::max_element(of_groups, {}, &MemoryPlan::bytes));
  if (request.fisher) plans.push_back(plan_gradients(network, request.device.numerics, options.length, part, usable));
  return plans;
}

// Of the text that method `slope` has beside its statistics.
int64_t sequences_of(const QuantizeRequest& request) {
  return request.hessians.empty() || request.given_text.is_given() ? request.calibration.sequences : 0;
}

// And what cross terms will, of which there may be none.
std::vector<MemoryPlan> plan_cross_terms(const QuantizeRequest& request, const OpenedCheckpoint& source, int ranks) {
  const int64_t sequences = std::min(sequences_of(request), request.cross_sequences);
  const int64_t length = request.calibration.length;
  if (request.slope.cross_term == 0 || sequences < 1) return {};
  const std::shared_ptr<const Network>& network = source.runnable().network;
  const Numerics numerics = request.device.numerics == Numerics::kBf16 ? Numerics::kBf16 : Numerics::kFp32;
  // Other ranks have as many devices, as a rule.
  const std::vector<Share> parts =
      most_parts_of_reader(sequences, request.device.ordinals.size() * static_cast<size_t>(ranks));
  const int64_t most = std::min(sequences, cuda_windows_per_batch(request.device.ordinals[0], length));
  const uint64_t usable = usable_memory(request.device);
  if (auto plan = plan_kept_input_pairs(network, numerics, length, parts, most, usable)) return {*plan};
  return {plan_input_pairs(network, numerics, length, parts, most, /*keeps=*/false, usable)};
}

// A step of learning or distillation: of a model that runs, on sequences that it reads.
struct TunedPass {
  int64_t sequences;
  DivergenceOptions options;

  bool learns() const { return !options.summed.empty(); }
  uint64_t latent_bytes(const Network& network) const { return code_learning_bytes(network, options.summed); }
  void name(MemoryPlan& plan) const {
    if (learns()) plan.step = "learning codes";
  }
};

// Of codes, that of the block whose latents take most.
std::vector<TunedPass> tuned_passes(const QuantizeRequest& request, const Network& network, int ranks) {
  const int64_t available = sequences_of(request);
  std::vector<TunedPass> passes;
  auto add = [&](int64_t steps, int64_t batch, DivergenceOptions options) {
    if (steps == 0 || available < 2) return;
    options.adds = adds_of(request.device.ordinals.size(), ranks);
    const DistillSplit split = split_sequences(steps, batch, available, request.given_text.is_given());
    passes.push_back({split.count(), options});
  };
  const std::vector<std::set<std::string>> blocks = learned_blocks(network, request.codes.block);
  add(request.codes.steps, request.codes.batch,
      {.summed = *std::ranges::max_element(
           blocks, {}, [&](const std::set<std::string>& block) { return code_learning_bytes(network, block); }),
       .sums_rows = request.learns_rows});
  add(request.tuner.steps, request.tuner.batch, {});
  return passes;
}

uint64_t weight_count(const OpenedCheckpoint& source) {
  uint64_t count = 0;
  for (const auto& [name, tensor] : source.shapes()) count += static_cast<uint64_t>(element_count(tensor.shape));
  return count;
}

// Both, likewise.
std::vector<MemoryPlan> plan_distillation(const QuantizeRequest& request, const OpenedCheckpoint& source, int ranks) {
  std::vector<MemoryPlan> plans;
  const std::shared_ptr<const Network>& network = source.runnable().network;
  const uint64_t usable = usable_memory(request.device);
  for (const TunedPass& tuned : tuned_passes(request, *network, ranks)) {
    const uint64_t latents = tuned.latent_bytes(*network), taken = std::min(latents, usable);
    plans.push_back(plan_divergence(network, request.device.numerics, request.calibration.length, tuned.sequences,
                                    usable - taken, tuned.options));
    if (tuned.learns()) plans.back().uses.push_back({"latents", latents});
    tuned.name(plans.back());
  }
  return plans;
}

// What solved layers become, which stays from then on.
MemoryUse codes_of(const OpenedCheckpoint& source) {
  return {"codes, sections", weight_count(source) * kSolvedWeightBytes};
}

// What each matrix takes while it is solved, descending. `layers` have Hessians; with method slope the output head does
// too, and lookup tables are solved without.
std::vector<uint64_t> solving_bytes_of(const QuantizeRequest& request, const OpenedCheckpoint& source,
                                       const std::vector<std::string>& layers) {
  const bool is_slope = request.method == MethodKind::kSlope;
  std::set<std::string> with_hessian(layers.begin(), layers.end());
  if (is_slope && source.spec()) {
    const Network& network = *source.spec()->network;
    with_hessian.insert(network.matrix(network.head.weight).name);
  }
  std::vector<uint64_t> bytes;
  for (const auto& [name, tensor] : source.shapes()) {
    const Shape& shape = tensor.shape;
    const bool has_hessian = with_hessian.contains(name);
    if (shape.size() == 2 && (has_hessian || (is_slope && element_count(shape) > request.plan.min_elements)))
      bytes.push_back(solving_bytes(shape[0], shape[1], has_hessian));
  }
  std::ranges::sort(bytes, std::greater{});
  return bytes;
}

// Of solving layers, the largest first, as parallel_within() lets them. `other`: what is in memory meanwhile.
MemoryPlan plan_solving(const QuantizeRequest& request, const OpenedCheckpoint& source,
                        const std::vector<std::string>& layers, std::vector<MemoryUse> other) {
  const MemoryUse codes = codes_of(source);
  const uint64_t working = working_memory(request.device.host_memory_bytes, codes.bytes);
  uint64_t in_flight = 0;
  int64_t count = 0;
  for (uint64_t bytes : solving_bytes_of(request, source, layers)) {
    if (count == thread_count()) break;
    if (count > 0 && in_flight + bytes > working) continue;
    in_flight += bytes;
    ++count;
  }
  MemoryPlan plan{"solving", "layer", 0, std::max<int64_t>(1, count), std::move(other), /*is_host=*/true};
  plan.uses.push_back(codes);
  plan.uses.push_back({"factorisations", in_flight});
  return plan;
}

// Of the host where it is the CPU that computes. From statistics on, Hessians wait; from solving on, there are codes.
std::vector<MemoryPlan> plan_host_memory(const QuantizeRequest& request, OpenedCheckpoint& source,
                                         const std::vector<std::string>& layers, int ranks) {
  const uint64_t usable = request.device.host_memory_bytes;
  if (!request.hessians.empty())  // which lie in their file; the model may be none that runs
    return {plan_solving(request, source, layers, {{"weights", source.memory_bytes()}})};
  const Network& network = *source.runnable().network;
  const CalibrationOptions& options = request.calibration;
  const bool is_exact = request.device.numerics == Numerics::kFp32;
  // What a numeric mode rounds is in float32.
  const uint64_t weights = source.memory_bytes() + source.weights()->owned_bytes();
  const uint64_t rounded = weights + (is_exact ? 0 : weight_count(source) * sizeof(float));
  const bool with_loss = request.fisher && collects_at_once(request.device);
  std::vector<MemoryPlan> plans;
  if (!request.given_text.is_given()) plans.push_back(plan_cpu_generation(network, options, rounded));
  const uint64_t read = with_loss ? weights : rounded;  // whose pass rounds no weights
  plans.push_back(plan_host_statistics(network, options.length, with_loss, read, usable));
  const HessianGroups groups = group_hessians(source.runnable().network, request.device, request.statistics_count(),
                                              options.length, with_loss, read);
  const MemoryUse waiting = {"Hessians", waiting_bytes(network, groups)};
  plans.push_back(plan_solving(request, source, layers, {{"weights", weights}, waiting}));
  if (request.method != MethodKind::kSlope) return plans;
  const MemoryUse codes = codes_of(source);
  const int64_t sequences = sequences_of(request), crossed = std::min(sequences, request.cross_sequences);
  auto add = [&](MemoryPlan plan) {
    plan.uses.insert(plan.uses.end(), {waiting, codes});
    plans.push_back(std::move(plan));
  };
  if (request.slope.cross_term > 0 && crossed > 0)
    add(plan_cpu_input_pairs(network, options.length, crossed, ranks, weights));
  for (const TunedPass& tuned : tuned_passes(request, network, ranks)) {
    MemoryPlan plan = plan_cpu_divergence(network, options.length, tuned.sequences, weights, tuned.options);
    tuned.name(plan);
    if (tuned.learns()) plan.uses.push_back({"latents", tuned.latent_bytes(network)});
    add(std::move(plan));
  }
  return plans;
}

}  // namespace

std::vector<MemoryPlan> plan_memory(const QuantizeRequest& request, OpenedCheckpoint& source,
                                    const std::vector<std::string>& layers, int ranks) {
  if (!request.device.is_cuda) return plan_host_memory(request, source, layers, ranks);
  std::vector<MemoryPlan> plans;
  if (request.hessians.empty()) plans = plan_calibration(request, source);
  if (request.method != MethodKind::kSlope) return plans;
  std::ranges::move(plan_cross_terms(request, source, ranks), std::back_inserter(plans));
  std::ranges::move(plan_distillation(request, source, ranks), std::back_inserter(plans));
  return plans;
}

}  // namespace thimble
