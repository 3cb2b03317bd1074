// cuda_gptq.cpp: the answer of a build without CUDA.
#include "gptq/cuda_gptq.h"

#include "runtime/error.h"

namespace thimble {

std::vector<GptqResult> solve_gptq_cuda(std::span<const SymmetricMatrix* const>, std::span<const GptqJob>, double,
                                        const CudaPlace&, const OnGptqSolved&) {
  throw DeviceError("this build has no CUDA: layers are solved on the CPU");
}

}  // namespace thimble
