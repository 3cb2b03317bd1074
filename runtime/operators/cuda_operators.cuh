// cuda_operators.cuh: the operators of operators.h on matrices in device memory. Host interface for .cu files.
#pragma once

#include <cuda_runtime.h>

#include "runtime/operators/operators.h"

namespace thimble {

// Enqueues `call`, whose pointers lie in device memory.
void launch_operator(const OperatorCall& call, cudaStream_t stream);

}  // namespace thimble
