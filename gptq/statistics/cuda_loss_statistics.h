// cuda_loss_statistics.h: loss statistics of a model, collected on CUDA devices. A build without CUDA links
// cuda_gptq_stub.cpp, where the call is a DeviceError.
#pragma once

#include "gptq/statistics/fisher.h"
#include "runtime/base/progress.h"
#include "runtime/device/device.h"
#include "runtime/ops/token_sequences.h"
#include "runtime/ops/weights.h"

namespace thimble {

// Runs every sequence, less its last token, through the model and back from the loss, in float32 whatever the device's
// numerics. Each of `device`'s CUDA devices takes a share of the parts of hessian_sum.h, which are added in order: the
// result is the same bits for any number of devices. Sequences at a time are as many as their memory allows
// (plan_gradients() in cuda_memory.h). A gradient that is not finite is an Error (bad input) that names matrix,
// sequence, position and output.
LossStatistics collect_loss_statistics_cuda(const std::shared_ptr<const Weights>& weights, const Device& device,
                                            const TokenSequences& sequences, Progress& progress);

}  // namespace thimble
