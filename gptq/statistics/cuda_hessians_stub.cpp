// cuda_hessians_stub.cpp: the answer of a program without CUDA kernels.
#include "gptq/statistics/cuda_hessians.h"
#include "runtime/base/error.h"

namespace thimble {

HessianSet collect_hessians_cuda(const std::shared_ptr<const Weights>&, const Device&, const TokenSequences&,
                                 Progress&) {
  throw DeviceError("this build collects Hessians on the CPU only; use --device cpu");
}

}  // namespace thimble
