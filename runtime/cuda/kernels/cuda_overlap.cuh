// cuda_overlap.cuh: kernels that begin while the one before them in the stream ends (programmatic dependent launch;
// CUDA Programming Guide). One that is launched with LaunchShape::overlaps calls, in every CTA,
//   wait_for_previous()   before it reads what the kernel before it writes, and before it writes anything;
//   let_next_begin()      after that, if at all.
// So what runs before a kernel's wait may read what the kernel before the previous one, and all before that, have
// written: the previous one would not have let it begin before they had ended. Of kernels that were not launched so,
// and before sm_90, both functions do nothing.
#pragma once

namespace thimble {

__device__ inline void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

// Asks for what lies there, and later will be read, into the L2 cache.
__device__ inline void prefetch(const void* at) { asm volatile("prefetch.global.L2 [%0];\n" ::"l"(at)); }

}  // namespace thimble
