// models.cpp: see models.h.
#include "runtime/device/models.h"

#include <functional>

#include "runtime/base/parallel.h"
#include "runtime/cpu/cpu_models.h"
#include "runtime/cuda/cuda_models.h"
#include "runtime/device/shared_models.h"

namespace thimble {
namespace {

Ranks& no_other_ranks() {
  static const std::unique_ptr<Ranks> alone = make_single_rank();
  return *alone;
}

// One for each CUDA device, all made at once.
template <typename Part>
std::vector<std::unique_ptr<Part>> on_all(const Device& device,
                                          const std::function<std::unique_ptr<Part>(const CudaPlace&)>& make) {
  std::vector<std::unique_ptr<Part>> parts(device.ordinals.size());
  run_in_threads(parts.size(), [&](size_t i) { parts[i] = make({device.ordinals[i], device.memory_limit_bytes}); });
  return parts;
}

}  // namespace

std::unique_ptr<Scorer> make_scorer(const std::shared_ptr<const Weights>& weights, const Device& device,
                                    int64_t context, Ranks& ranks) {
  std::vector<std::unique_ptr<Scorer>> parts;
  if (device.is_cuda)
    parts = on_all<Scorer>(
        device, [&](const CudaPlace& place) { return make_cuda_scorer(weights, place, device.numerics, context); });
  else
    parts.push_back(make_cpu_scorer(weights, device.numerics, context));
  return make_shared_scorer(std::move(parts), ranks);
}

std::unique_ptr<Generator> make_generator(const std::shared_ptr<const Weights>& weights, const Device& device,
                                          int64_t context, int64_t sequences, Ranks& ranks) {
  std::vector<std::unique_ptr<Generator>> parts;
  if (device.is_cuda)
    parts = on_all<Generator>(device, [&](const CudaPlace& place) {
      return make_cuda_generator(weights, place, device.numerics, context, sequences);
    });
  else
    parts.push_back(make_cpu_generator(weights, device.numerics, context));
  return make_shared_generator(std::move(parts), ranks);
}

std::unique_ptr<Scorer> make_scorer(const std::shared_ptr<const Weights>& weights, const Device& device,
                                    int64_t context) {
  return make_scorer(weights, device, context, no_other_ranks());
}

std::unique_ptr<Generator> make_generator(const std::shared_ptr<const Weights>& weights, const Device& device,
                                          int64_t context, int64_t sequences) {
  return make_generator(weights, device, context, sequences, no_other_ranks());
}

std::unique_ptr<DivergencePass> make_divergence_pass(const std::shared_ptr<const Weights>& teacher,
                                                     const std::shared_ptr<const Weights>& student,
                                                     const TokenSequences& sequences, const Device& device,
                                                     Progress& progress) {
  if (device.is_cuda)
    return make_cuda_divergence_pass(teacher, student, sequences, {device.ordinals[0], device.memory_limit_bytes},
                                     progress);
  return make_cpu_divergence_pass(teacher, *student, sequences);
}

}  // namespace thimble
