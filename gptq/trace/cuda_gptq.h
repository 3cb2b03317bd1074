// cuda_gptq.h: GPTQ of many layers on one CUDA device, the counterpart of factor_hessian(), solve_gptq() and
// solve_gptq_nvfp4().
// In: Hessians and weights in host memory.  Out: what the CPU's solver returns.
// A code differs from the CPU's only where an argument lies within rounding of a tie between two codes (and then those
// that follow in its row). Scales are the CPU's, bit for bit; errors are summed in the CPU's order.
// R = output rows, K = input columns
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "gptq/statistics/symmetric_matrix.h"
#include "gptq/trace/gptq_solver.h"
#include "runtime/device/device.h"
#include "runtime/tensor/matrix.h"

namespace thimble {

// One matrix to solve.
struct GptqJob {
  std::string name;         // for errors
  ConstMatrixView weights;  // (R, K), finite
  int max_code = 0;         // as in solve_gptq(); NVFP4 does not read it
  size_t hessian_index = 0;
};

// Sees every result as soon as it is known, in no fixed order, one at a time but from any thread.
using OnGptqSolved = std::function<void(size_t job, const GptqResult& result)>;
using OnNvfp4GptqSolved = std::function<void(size_t job, const Nvfp4GptqResult& result)>;

// results[i] solves jobs[i] with *hessians[jobs[i].hessian_index]; each Hessian in use is factored once, with `damping`
// as in factor_hessian(). Results are the same bits whatever is solved in the same call, on every device of one model.
// Fewer are solved at a time where little memory may be used.
// Errors are those of factor_hessian() and solve_gptq(); a device that is missing, fails or has too little memory, and
// a build without CUDA, are a DeviceError.
std::vector<GptqResult> solve_gptq_cuda(std::span<const SymmetricMatrix* const> hessians, std::span<const GptqJob> jobs,
                                        double damping, const CudaPlace& place, const OnGptqSolved& on_solved = {});

// The same in NVFP4.
std::vector<Nvfp4GptqResult> solve_gptq_nvfp4_cuda(std::span<const SymmetricMatrix* const> hessians,
                                                   std::span<const GptqJob> jobs, double damping,
                                                   const CudaPlace& place, const OnNvfp4GptqSolved& on_solved = {});

}  // namespace thimble
