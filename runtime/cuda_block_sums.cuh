// cuda_block_sums.cuh: sums and maxima over a CTA, for kernels that give a whole CTA to one long row. Every thread gets
// the result. Warps are joined in ascending order: the same bits every time.
#pragma once

#include "runtime/cuda_numeric.cuh"

namespace thimble {

constexpr int kRowBlockThreads = 256;

template <typename Join>
__device__ float join_over_block(float of_warp, const Join& join) {
  __shared__ float values[kRowBlockThreads / 32];
  __syncthreads();  // the last call's values have been read
  if (threadIdx.x % 32 == 0) values[threadIdx.x / 32] = of_warp;
  __syncthreads();
  float joined = values[0];
  for (int warp = 1; warp < kRowBlockThreads / 32; ++warp) joined = join(joined, values[warp]);
  return joined;
}
__device__ inline float sum_over_block(float value) {
  return join_over_block(sum_over_lanes<32>(value), [](float a, float b) { return a + b; });
}
__device__ inline float max_over_block(float value) {
  return join_over_block(max_over_lanes<32>(value), [](float a, float b) { return fmaxf(a, b); });
}

}  // namespace thimble
