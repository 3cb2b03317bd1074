// cuda_input_pairs.h: joint Hessians of two models' inputs on a CUDA device. A build without CUDA links
// cuda_input_pairs_stub.cpp, where the call is a DeviceError.
#pragma once

#include "gptq/input_pairs.h"

namespace thimble {

// Mean of (x~, x) (x~, x)^T, (2 K, 2 K), on the device's first ordinal, in its numerics; see collect_input_pair().
SymmetricMatrix joint_hessian_cuda(const Model& original, const Model& quantized, const Device& device,
                                   const TokenSequences& tokens, int64_t sequences,
                                   std::span<const std::string> layers);

}  // namespace thimble
