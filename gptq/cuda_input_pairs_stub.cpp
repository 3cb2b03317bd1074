// cuda_input_pairs_stub.cpp: the answer of a build without CUDA.
#include "gptq/cuda_input_pairs.h"
#include "runtime/error.h"

namespace thimble {

SymmetricMatrix joint_hessian_cuda(const Model&, const Model&, const Device&, const TokenSequences&, int64_t,
                                   std::span<const std::string>) {
  throw DeviceError("this build has no CUDA: Hessians are collected on the CPU");
}

}  // namespace thimble
