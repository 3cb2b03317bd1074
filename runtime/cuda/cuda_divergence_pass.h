// cuda_divergence_pass.h: divergence_pass.h on a CUDA device, in float32 whatever the device's numerics. A build
// without CUDA links cuda_divergence_pass_stub.cpp, where the call is a DeviceError.
#pragma once

#include "runtime/ops/divergence_pass.h"

namespace thimble {

std::unique_ptr<DivergencePass> make_cuda_divergence_pass(const Model& teacher, const Model& student,
                                                          const TokenSequences& sequences, const Device& device,
                                                          Progress& progress);

}  // namespace thimble
