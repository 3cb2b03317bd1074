// cuda_input_pairs_stub.cpp: the answer of a build without CUDA.
#include "gptq/factor/cuda_input_pairs.h"
#include "runtime/base/error.h"

namespace thimble {

std::unique_ptr<InputPairs> make_cuda_input_pairs(const std::shared_ptr<const Weights>&,
                                                  const std::shared_ptr<const Weights>&, const Device&,
                                                  const TokenSequences&, int64_t) {
  throw DeviceError("this build has no CUDA: Hessians are collected on the CPU");
}

}  // namespace thimble
