// device_team.cuh: the teams of row_access.h on devices: a warp or a block of threads per row. For CUDA and HIP.
// A warp is 32 lanes here also where the hardware's is 64: two rows then share it.
#pragma once

#include "runtime/tensor/row_access.h"

namespace thimble {

template <typename T>
__device__ T shuffle_xor(T value, int distance) {
  static_assert(sizeof(T) % 4 == 0);
  union {
    T whole;
    uint32_t words[sizeof(T) / 4];
  } own = {value};
#pragma unroll
  for (uint32_t& word : own.words) {
#ifdef __HIPCC__
    word = static_cast<uint32_t>(__shfl_xor(static_cast<int>(word), distance, kLanesPerWarp));
#else
    word = __shfl_xor_sync(~0u, word, distance);
#endif
  }
  return own.whole;
}

// Every lane's value, joined by halves. The lower lane's comes first, so that all lanes get the same bits also where
// joining two is not symmetric.
template <typename T, typename JoinTwo>
__device__ T join_over_warp(T own, int lane, const JoinTwo& join_two) {
#pragma unroll
  for (int distance = kLanesPerWarp / 2; distance > 0; distance /= 2) {
    T other = shuffle_xor(own, distance);
    own = lane & distance ? join_two(other, own) : join_two(own, other);
  }
  return own;
}

// kLanes threads, which are a block, or one of the warps of a block.
template <int kLanes>
struct DeviceTeam {
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kLanes; }
  __device__ static constexpr int lanes() { return kLanes; }

  template <typename T, typename ValueOf, typename JoinTwo>
  __device__ T join(const ValueOf& value_of, const JoinTwo& join_two) const {
    T own = join_over_warp<T>(value_of(lane()), lane() % kLanesPerWarp, join_two);
    if constexpr (kLanes > kLanesPerWarp) {
      constexpr int kWarps = kLanes / kLanesPerWarp;
      __shared__ T warps[kWarps];
      __syncthreads();  // the last call's values have been read
      if (lane() % kLanesPerWarp == 0) warps[lane() / kLanesPerWarp] = own;
      __syncthreads();
      own = warps[0];
#pragma unroll 8
      for (int warp = 1; warp < kWarps; ++warp) own = join_two(own, warps[warp]);
    }
    return own;
  }
  template <typename Body>
  __device__ void for_each_lane(const Body& body) const {
    body(lane());
  }
};

// A row in the registers of its team: kPacks packs per lane. All are asked for before any is looked at, so that enough
// bytes are on their way.
template <typename In, int kPack, int kPacks>
class DeviceHeldRow {
 public:
  static constexpr bool kIsHeld = true;

  __device__ DeviceHeldRow(const RowInMemory<In, kPack>& memory, int lane, int lanes) : memory_(memory) {
    StoredPack<In, kPack> stored[kPacks];
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      int64_t pack = lane + static_cast<int64_t>(i) * lanes;
      if (memory.count(pack) > 0) stored[i].read(memory.x + pack * kPack, memory.aligned, memory.count(pack));
    }
#pragma unroll
    for (int i = 0; i < kPacks; ++i) stored[i].unpack(values_[i]);
  }

  template <typename Body>
  __device__ void for_each_pack(int lane, int lanes, const Body& body) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      int64_t pack = lane + static_cast<int64_t>(i) * lanes;
      int count = memory_.count(pack);
      if (count > 0) body(values_[i], pack * kPack, count);
    }
  }

 private:
  RowInMemory<In, kPack> memory_;
  float values_[kPacks][kPack];
};

}  // namespace thimble
