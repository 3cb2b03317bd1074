// cuda_models_stub.cpp: the answers of a program without CUDA kernels.
#include "runtime/cuda/cuda_models.h"

namespace thimble {

std::unique_ptr<Scorer> make_cuda_scorer(std::shared_ptr<const Weights>, const CudaPlace&, Numerics, int64_t) {
  refuse_cuda();
}

std::unique_ptr<Generator> make_cuda_generator(std::shared_ptr<const Weights>, const CudaPlace&, Numerics, int64_t,
                                               int64_t) {
  refuse_cuda();
}

std::unique_ptr<DevicePass> make_cuda_divergence_pass(std::shared_ptr<const Weights>, std::shared_ptr<const Weights>,
                                                      const TokenSequences&, const CudaPlace&, Numerics, Progress&,
                                                      const DivergenceOptions&) {
  refuse_cuda();
}

MemoryPlan plan_scoring(const std::shared_ptr<const Network>&, Numerics, int64_t, int64_t, uint64_t) { refuse_cuda(); }

MemoryPlan plan_generation(const std::shared_ptr<const Network>&, Numerics, int64_t, int64_t, uint64_t) {
  refuse_cuda();
}

MemoryPlan plan_text(const std::shared_ptr<const Network>&, Numerics, int64_t, int64_t, uint64_t) { refuse_cuda(); }

MemoryPlan plan_divergence(const std::shared_ptr<const Network>&, Numerics, int64_t, int64_t, uint64_t,
                           const DivergenceOptions&) {
  refuse_cuda();
}

}  // namespace thimble
