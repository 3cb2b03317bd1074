// cuda_input_shift.h: InputShift on a CUDA device. A build without CUDA links cuda_gptq_stub.cpp, where the call
// is a DeviceError.
#pragma once

#include "gptq/factor/input_pairs.h"

namespace thimble {

// What InputShift(pair, damping, layer).shifted(weights[i], strength) gives for every i, in float64 as there, but with
// sums in another order: the same bits on every device of one model. Too little memory is a DeviceError.
std::vector<Matrix> shift_weights_cuda(std::span<const ConstMatrixView> weights, const InputPair& pair, double damping,
                                       double strength, const std::string& layer, const CudaPlace& place);

}  // namespace thimble
