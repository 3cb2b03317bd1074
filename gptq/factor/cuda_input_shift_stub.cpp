// cuda_input_shift_stub.cpp: the answer of a build without CUDA.
#include "gptq/factor/cuda_input_shift.h"
#include "runtime/base/error.h"

namespace thimble {

std::vector<Matrix> shift_weights_cuda(std::span<const ConstMatrixView>, const InputPair&, double, double,
                                       const std::string&, const CudaPlace&) {
  throw DeviceError("this build has no CUDA: weights are shifted on the CPU");
}

}  // namespace thimble
