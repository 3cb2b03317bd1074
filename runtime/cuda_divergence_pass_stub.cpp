// cuda_divergence_pass_stub.cpp: the answer of a program without CUDA kernels.
#include "runtime/cuda_divergence_pass.h"
#include "runtime/error.h"

namespace thimble {

std::unique_ptr<DivergencePass> make_cuda_divergence_pass(const Model&, const Model&, const TokenSequences&,
                                                          const Device&, Progress&) {
  throw DeviceError("this build computes divergences on the CPU only; use --device cpu");
}

}  // namespace thimble
