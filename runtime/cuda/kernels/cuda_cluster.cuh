// cuda_cluster.cuh: CTAs of a cluster (LaunchShape::cluster; CUDA Programming Guide), which run at once.
#pragma once

namespace thimble {

// All threads of all CTAs of the cluster wait for each other: what they wrote before is seen by all after. Nothing
// before sm_90, which has no clusters.
__device__ inline void cluster_barrier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n" ::: "memory");
#endif
}

}  // namespace thimble
