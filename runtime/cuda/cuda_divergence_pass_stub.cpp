// cuda_divergence_pass_stub.cpp: the answer of a program without CUDA kernels.
#include "runtime/base/error.h"
#include "runtime/cuda/cuda_divergence_pass.h"

namespace thimble {

std::unique_ptr<DivergencePass> make_cuda_divergence_pass(const Model&, const Model&, const TokenSequences&,
                                                          const Device&, Progress&) {
  throw DeviceError("this build computes divergences on the CPU only; use --device cpu");
}

}  // namespace thimble
