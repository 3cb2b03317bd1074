// models.cpp: see models.h.
#include "runtime/device/models.h"

#include "runtime/base/parallel.h"
#include "runtime/cpu/cpu_models.h"
#include "runtime/cuda/cuda_models.h"

namespace thimble {
namespace {

// One on the CPU, or one for each CUDA device, all made at once.
template <typename Part, typename MakeOnCuda>
std::vector<std::unique_ptr<Part>> parts_on(const Device& device, const MakeOnCuda& make_on_cuda,
                                            std::unique_ptr<Part> (*make_on_cpu)(std::shared_ptr<const Weights>,
                                                                                 Numerics, int64_t),
                                            const std::shared_ptr<const Weights>& weights, int64_t context) {
  std::vector<std::unique_ptr<Part>> parts(device.is_cuda ? device.ordinals.size() : 1);
  if (device.is_cuda)
    run_in_threads(parts.size(), [&](size_t i) {
      parts[i] = make_on_cuda(CudaPlace{device.ordinals[i], device.memory_limit_bytes});
    });
  else
    parts[0] = make_on_cpu(weights, device.numerics, context);
  return parts;
}

}  // namespace

std::unique_ptr<Scorer> make_scorer(const std::shared_ptr<const Weights>& weights, const Device& device,
                                    int64_t context, Ranks& ranks) {
  auto on_cuda = [&](const CudaPlace& place) { return make_cuda_scorer(weights, place, device.numerics, context); };
  return make_shared_scorer(parts_on(device, on_cuda, make_cpu_scorer, weights, context), ranks);
}

std::unique_ptr<Generator> make_generator(const std::shared_ptr<const Weights>& weights, const Device& device,
                                          int64_t context, int64_t sequences, Ranks& ranks) {
  auto on_cuda = [&](const CudaPlace& place) {
    return make_cuda_generator(weights, place, device.numerics, context, sequences);
  };
  return make_shared_generator(parts_on(device, on_cuda, make_cpu_generator, weights, context), ranks);
}

std::unique_ptr<DivergencePass> make_divergence_pass(const std::shared_ptr<const Weights>& teacher,
                                                     const std::shared_ptr<const Weights>& student,
                                                     const TokenSequences& sequences, const Device& device,
                                                     Progress& progress, const DivergenceOptions& options,
                                                     Ranks& ranks) {
  std::vector<std::unique_ptr<DevicePass>> parts(device.is_cuda ? device.ordinals.size() : 1);
  auto options_of = [&](size_t i) {
    DivergenceOptions of_part = options;
    of_part.adds = i > 0 ? DivergenceOptions::Adds::kNothing : adds_of(parts.size(), ranks.size());
    return of_part;
  };
  if (device.is_cuda)
    run_in_threads(parts.size(), [&](size_t i) {
      SilentProgress silent;
      parts[i] = make_cuda_divergence_pass(teacher, student, sequences, {device.ordinals[i], device.memory_limit_bytes},
                                           device.numerics, i == 0 ? progress : silent, options_of(i));
    });
  else
    parts[0] =
        make_cpu_divergence_pass(teacher, *student, sequences, options_of(0), gradient_arithmetic(device.numerics));
  return make_shared_divergence_pass(std::move(parts), *teacher, ranks, options);
}

}  // namespace thimble
