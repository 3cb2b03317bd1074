// cuda_hessians.h: Hessians of all linear layers of a model, collected on a CUDA device. A build without CUDA links
// cuda_hessians_stub.cpp, where the call is a DeviceError.
#pragma once

#include "gptq/hessian.h"
#include "runtime/device.h"
#include "runtime/generate.h"

namespace thimble {

// Runs every sequence, less its last token, through the model on the first of `device`'s CUDA devices, so that the
// result is the same bits for any number of them.
HessianSet collect_hessians_cuda(const Model& model, const Device& device, const TokenSequences& sequences,
                                 Progress& progress);

}  // namespace thimble
