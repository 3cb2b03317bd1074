// cuda_operators.h: the operators of operators.h on CUDA devices, and what their speed is measured against. Builds
// without CUDA have these functions too; they throw DeviceError.
#pragma once

#include "runtime/operators/operators.h"

struct CUstream_st;  // what a cudaStream_t points to

namespace thimble {

// Computes `call`, whose pointers are the host's, on the device. Returns the seconds that the kernel takes, on average
// over many calls; inputs and outputs alternate between copies that together are larger than any cache.
double run_operator_on_cuda(int ordinal, const OperatorCall& call);

// Bytes per second, read and written together, at which the device copies 1 GiB of its memory to another place.
double cuda_copy_bandwidth(int ordinal);

// Enqueues `call`, whose pointers lie in device memory. In builds with CUDA alone.
void launch_operator(const OperatorCall& call, CUstream_st* stream);

}  // namespace thimble
