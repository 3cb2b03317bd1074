// nvfp4_grid.cu: the block scales of choose_nvfp4_scales() on the device, the same bits as nvfp4_grid.cpp.
#include "gptq/trace/gptq_solver.cuh"
#include "gptq/trace/nvfp4_grid.h"
#include "runtime/cuda/kernels/cuda_context.cuh"

namespace thimble {
namespace {

constexpr int kRowsPerCta = 8;

// One warp per row, a lane per block: a lane reads 64 neighbouring bytes, 13 times, from its cache.
__global__ void block_scales_kernel(const SolverJob<Nvfp4Grid>* jobs) {
  const SolverJob<Nvfp4Grid> job = jobs[blockIdx.y];
  int row = blockIdx.x * kRowsPerCta + threadIdx.x / 32;
  if (row >= job.rows) return;
  const float* weights = job.weights + static_cast<int64_t>(row) * job.columns;
  int blocks = divide_up(job.columns, kNvfp4Block);
  for (int block = threadIdx.x % 32; block < blocks; block += 32) {
    int begin = block * kNvfp4Block, count = min(kNvfp4Block, job.columns - begin);
    job.scales[static_cast<int64_t>(row) * blocks + block] =
        best_nvfp4_block_scale(weights + begin, count, job.grid.tensor_scale);
  }
}

}  // namespace

void compute_scales(const SolverJob<Nvfp4Grid>* jobs, int64_t count, int64_t most_rows, cudaStream_t stream) {
  dim3 grid(divide_up(most_rows, kRowsPerCta), static_cast<unsigned>(count));
  launch_kernel(block_scales_kernel, {grid, 32 * kRowsPerCta}, stream, jobs);
}

}  // namespace thimble
