// cuda_operators_stub.cpp: the answers of a build without CUDA.
#include "runtime/operators/cuda_operators.h"

#include "runtime/base/error.h"

namespace thimble {

double run_operator_on_cuda(int, const OperatorCall&) { throw DeviceError("this build computes on the CPU only"); }
double cuda_copy_bandwidth(int) { throw DeviceError("this build computes on the CPU only"); }

}  // namespace thimble
