// cuda_hessians.h: Hessians of all linear layers of a model, collected on CUDA devices. A build without CUDA links
// cuda_gptq_stub.cpp, where the call is a DeviceError.
#pragma once

#include "gptq/statistics/hessian.h"
#include "runtime/base/progress.h"
#include "runtime/device/device.h"
#include "runtime/ops/token_sequences.h"
#include "runtime/ops/weights.h"

namespace thimble {

// Runs every sequence, less its last token, through the model. Each of `device`'s CUDA devices takes a share of the
// parts of hessian_sum.h, and they are added in the order of hessian_tree.h: the result is the same bits for any number
// of devices. Sequences at a time are as many as their memory allows (cuda_memory.h).
HessianSet collect_hessians_cuda(const std::shared_ptr<const Weights>& weights, const Device& device,
                                 const TokenSequences& sequences, Progress& progress);

}  // namespace thimble
