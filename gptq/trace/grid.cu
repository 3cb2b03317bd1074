// grid.cu: row_scales() on the device, the same bits as grid.cpp.
#include <cuda_fp16.h>

#include "gptq/trace/gptq_solver.cuh"
#include "runtime/cuda/kernels/cuda_context.cuh"
#include "runtime/cuda/kernels/cuda_numeric.cuh"

namespace thimble {
namespace {

constexpr int kRowsPerCta = 8;
constexpr int kClips = kCandidates<RowScaledGrid>;

struct ClipFractions {
  double values[kClips];
};

// Where a quantile lies among n sorted values: `low` values below it in rank, and the way to the next.
struct Position {
  int from_top;  // rank of the lower neighbour, counted from the largest value, which is 0
  double way;    // from there to the upper neighbour
};

__device__ Position position_of(double fraction, int n) {
  double position = __dmul_rn(fraction, static_cast<double>(n - 1));
  int below = static_cast<int>(position);
  return {n - 1 - below, position - below};
}

// One warp per row. The quantiles lie near the top, so the warp walks down the distinct magnitudes from the largest:
// each step finds the largest value below the last one, and how often it occurs. About 0.001 K steps; lane l reads
// columns l, l + 32, ... Magnitudes are compared as integers, which order like them.
__global__ void row_scales_kernel(const SolverJob<RowScaledGrid>* jobs, ClipFractions fractions) {
  const SolverJob<RowScaledGrid> job = jobs[blockIdx.y];
  int row = blockIdx.x * kRowsPerCta + threadIdx.x / 32, lane = threadIdx.x % 32, columns = job.columns;
  if (row >= job.rows) return;
  const float* weights = job.weights + static_cast<int64_t>(row) * columns;

  Position positions[kClips];
  float low[kClips], high[kClips];
  int deepest = 0;
#pragma unroll
  for (int c = 0; c < kClips; ++c) {
    positions[c] = position_of(fractions.values[c], columns);
    deepest = max(deepest, positions[c].from_top);
  }
  uint32_t bound = ~0u;
  for (int seen = 0; seen <= deepest;) {
    uint32_t largest = 0;
    int times = 0;
    for (int k = lane; k < columns; k += 32) {
      uint32_t magnitude = __float_as_uint(fabsf(weights[k]));
      if (magnitude >= bound || magnitude < largest) continue;
      times = magnitude == largest ? times + 1 : 1;
      largest = magnitude;
    }
    uint32_t warp_largest = __reduce_max_sync(~0u, largest);
    times = __reduce_add_sync(~0u, largest == warp_largest ? times : 0);
    float value = __uint_as_float(warp_largest);
#pragma unroll
    for (int c = 0; c < kClips; ++c) {
      int lower = positions[c].from_top, upper = max(lower - 1, 0);
      if (lower >= seen && lower < seen + times) low[c] = value;
      if (upper >= seen && upper < seen + times) high[c] = value;
    }
    seen += times;
    bound = warp_largest;
  }
#pragma unroll
  for (int c = 0; c < kClips; ++c) {
    double clip = low[c];
    if (positions[c].from_top > 0)
      clip = __dadd_rn(clip, __dmul_rn(static_cast<double>(high[c]) - clip, positions[c].way));
    __half scale = __float2half_rn(static_cast<float>(fmax(clip, 1.0) / job.grid.max_code));
    if (lane == 0) job.scales[c * job.rows + row] = __half_as_ushort(scale);
  }
}

}  // namespace

void compute_scales(const SolverJob<RowScaledGrid>* jobs, int64_t count, int64_t most_rows, cudaStream_t stream) {
  ClipFractions fractions;
  for (int c = 0; c < kClips; ++c) fractions.values[c] = kClipFractions[c];
  dim3 grid(divide_up(most_rows, kRowsPerCta), static_cast<unsigned>(count));
  row_scales_kernel<<<grid, 32 * kRowsPerCta, 0, stream>>>(jobs, fractions);
  check_cuda(cudaGetLastError());
}

}  // namespace thimble
