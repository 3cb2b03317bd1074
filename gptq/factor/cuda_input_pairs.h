// cuda_input_pairs.h: inputs of two models on a CUDA device. A build without CUDA links cuda_gptq_stub.cpp,
// where the call is a DeviceError.
#pragma once

#include "gptq/factor/input_pairs.h"

namespace thimble {

// make_input_pairs() on the device's first ordinal, in its numerics. Least memory that is too much is a DeviceError.
std::unique_ptr<InputPairs> make_cuda_input_pairs(const std::shared_ptr<const Weights>& original,
                                                  const std::shared_ptr<const Weights>& quantized, const Device& device,
                                                  const TokenSequences& tokens, int64_t sequences);

}  // namespace thimble
