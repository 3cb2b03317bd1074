// cuda_block_sums.cuh: sums and maxima over a CTA, for kernels that give a whole CTA to one long row. Every thread gets
// the result. Warps are joined in ascending order: the same bits every time.
#pragma once

#include "runtime/tensor/device_team.cuh"

namespace thimble {

constexpr int kRowBlockThreads = 256;

__device__ inline float sum_over_block(float value) {
  return DeviceTeam<kRowBlockThreads>().join<float>([&](int) { return value; }, [](float a, float b) { return a + b; });
}
__device__ inline float max_over_block(float value) {
  return DeviceTeam<kRowBlockThreads>().join<float>([&](int) { return value; },
                                                    [](float a, float b) { return fmaxf(a, b); });
}

}  // namespace thimble
