// plan_memory.cpp: see plan_memory.h.
#include "quantizer/pipeline/plan_memory.h"

#include <algorithm>
#include <iterator>

#include "eval/text/token_shard.h"
#include "gptq/factor/input_pairs.h"
#include "gptq/statistics/statistics_sum.h"
#include "quantizer/methods/slope/distill.h"
#include "runtime/base/file.h"
#include "runtime/cuda/cuda_models.h"
#include "runtime/cuda/kernels/cuda_devices.h"

namespace thimble {
namespace {

// What calibration will take of each CUDA device, before any of it begins.
std::vector<MemoryPlan> plan_calibration(const QuantizeRequest& request, const OpenedCheckpoint& source) {
  const std::shared_ptr<const Network>& network = source.runnable().network;
  const CalibrationOptions& options = request.calibration;
  uint64_t usable = usable_memory(request.device);
  std::vector<MemoryPlan> plans;
  size_t devices = request.device.ordinals.size(), parts = hessian_part_count(options.sequences);
  if (request.calibration_tokens.empty()) {
    auto share = static_cast<int64_t>(share_of(static_cast<size_t>(options.sequences), devices - 1, devices).size());
    plans.push_back(
        plan_generation(network, request.device.numerics, options.length, std::max<int64_t>(1, share), usable));
  }
  auto part = static_cast<int64_t>(hessian_part(options.sequences, parts - 1).size());
  int64_t most = std::min(part, cuda_windows_per_batch(request.device.ordinals[0], options.length));
  int64_t live = live_sums(std::max<size_t>(1, share_of(parts, devices - 1, devices).size()));
  plans.push_back(plan_hessians(network, request.device.numerics, options.length, most, live, usable));
  if (request.fisher) plans.push_back(plan_gradients(network, options.length, part, usable));
  return plans;
}

// Of the text that method `slope` has beside its statistics.
int64_t sequences_of(const QuantizeRequest& request) {
  if (request.calibration_tokens.empty()) return request.hessians.empty() ? request.calibration.sequences : 0;
  // Of the wider format half as many: the plan is a bound.
  const size_t bytes = MappedFile(request.calibration_tokens).bytes().size();
  return static_cast<int64_t>(bytes / kShard16.token_bytes) / request.calibration.length;
}

// And what cross terms will, of which there may be none.
std::vector<MemoryPlan> plan_cross_terms(const QuantizeRequest& request, const OpenedCheckpoint& source) {
  const int64_t sequences = std::min(sequences_of(request), request.cross_sequences);
  const int64_t length = request.calibration.length;
  if (request.slope.cross_term == 0 || sequences < 1) return {};
  const std::shared_ptr<const Network>& network = source.runnable().network;
  const Numerics numerics = request.device.numerics == Numerics::kBf16 ? Numerics::kBf16 : Numerics::kFp32;
  const int64_t most = std::min(sequences, cuda_windows_per_batch(request.device.ordinals[0], length));
  const uint64_t usable = usable_memory(request.device);
  if (auto plan = plan_kept_input_pairs(network, numerics, length, sequences, most, usable)) return {*plan};
  return {plan_input_pairs(network, numerics, length, sequences, most, /*keeps=*/false, usable)};
}

// And distillation, likewise.
std::vector<MemoryPlan> plan_distillation(const QuantizeRequest& request, const OpenedCheckpoint& source) {
  const GainTunerOptions& options = request.tuner;
  const int64_t sequences = sequences_of(request), length = request.calibration.length;
  if (options.steps == 0 || sequences < 2) return {};
  const std::shared_ptr<const Network>& network = source.runnable().network;
  return {plan_divergence(network, length, distill_sequences(*network, options, sequences, length),
                          usable_memory(request.device))};
}

}  // namespace

std::vector<MemoryPlan> plan_memory(const QuantizeRequest& request, const OpenedCheckpoint& source) {
  if (!request.device.is_cuda) return {};
  std::vector<MemoryPlan> plans;
  if (request.hessians.empty()) plans = plan_calibration(request, source);
  if (request.method != MethodKind::kSlope) return plans;
  std::ranges::move(plan_cross_terms(request, source), std::back_inserter(plans));
  std::ranges::move(plan_distillation(request, source), std::back_inserter(plans));
  return plans;
}

}  // namespace thimble
