// cuda_gptq.cpp: the answer of a build without CUDA.
#include "gptq/trace/cuda_gptq.h"

#include "runtime/base/error.h"

namespace thimble {
namespace {

DeviceError no_cuda() { return DeviceError("this build has no CUDA: layers are solved on the CPU"); }

}  // namespace

std::vector<GptqResult> solve_gptq_cuda(std::span<const SymmetricMatrix* const>, std::span<const GptqJob>, double,
                                        const CudaPlace&, const OnGptqSolved&) {
  throw no_cuda();
}

std::vector<Nvfp4GptqResult> solve_gptq_nvfp4_cuda(std::span<const SymmetricMatrix* const>, std::span<const GptqJob>,
                                                   double, const CudaPlace&, const OnNvfp4GptqSolved&) {
  throw no_cuda();
}

}  // namespace thimble
