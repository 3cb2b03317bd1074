// hip_operators.hip: instantiates the operators for HIP, from the same source as for CUDA and the host. Compiled by
// scripts/hip-check, never run.
#include <hip/hip_runtime.h>

#include "runtime/operators/operator_dispatch.h"
#include "runtime/operators/operator_kernels.cuh"

namespace thimble {

struct HipLaunch {
  hipStream_t stream;

  template <typename Operation>
  void rows(const Operation& operation, int64_t rows) const {
    choose_row_kernel(operation, rows, [&](auto* kernel, int blocks, int threads) {
      hipLaunchKernelGGL(kernel, dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(threads)), 0, stream,
                         operation, rows);
    });
  }
  template <typename Operation>
  void elements(const Operation& operation) const {
    auto blocks = static_cast<unsigned>(divide_up(operation.packs(), kOperatorThreads));
    hipLaunchKernelGGL(element_operator_kernel<Operation>, dim3(blocks), dim3(kOperatorThreads), 0, stream, operation);
  }
};

void launch_operator_hip(const OperatorCall& call, hipStream_t stream) { dispatch_operator(call, HipLaunch{stream}); }

}  // namespace thimble
