// cuda_slope_stub.cpp: the answer of a build without CUDA.
#include "gptq/slope/cuda_slope.h"
#include "runtime/base/error.h"

namespace thimble {

std::vector<SlopeResult> solve_slope_cuda(std::span<const SlopeJob>, const ChooseGrid&, const CudaPlace&,
                                          const OnSlopeSolved&) {
  throw DeviceError("this build has no CUDA: layers are solved on the CPU");
}

}  // namespace thimble
