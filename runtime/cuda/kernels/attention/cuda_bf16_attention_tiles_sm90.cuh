// cuda_bf16_attention_tiles_sm90.cuh: what the kernels of cuda_bf16_attention_sm90.cuh have in common. One CTA per
// multiprocessor takes tiles of queries (or keys) of one head, one after the other. Its warpgroups:
//
//   kGroups   of 64 rows each: products of what a step brings (wgmma), the tile's own rows and weights as left factors
//                                                                      <- tile_full, full   -> tile_empty, empty
//   1         a warp that loads: the tile's rows, then steps of 64 rows of what they meet, kStages deep
//
// A step's scores are multiplied while the gradients of the step before are added up; groups take turns on the tensor
// cores, since each needs them for some of its time only.
#pragma once

#include "runtime/cuda/kernels/attention/cuda_attention.h"
#include "runtime/cuda/kernels/attention/cuda_bf16_attention_sm90.cuh"
#include "runtime/cuda/kernels/attention/cuda_bf16_attention_sums.cuh"
#include "runtime/cuda/kernels/cuda_overlap.cuh"
#include "runtime/cuda/kernels/cuda_sm90.cuh"

namespace thimble {
namespace bf16_attention_sm90 {

using Rounded = __nv_bfloat16;
using Operands = Bf16AttentionOperands;

constexpr int kHead = kSm90HeadWidth, kStep = 64, kStages = 4, kTileStages = 2;
constexpr int kBoxBytes = kStep * kHead * 2;  // of 64 rows of one head
constexpr int kBarrierBytes = 128;

// Of tiles of kGroups * 64 rows, of kTileBoxes matrices; a step brings rows of two matrices.
template <int kGroups, int kTileBoxes>
struct Plan {
  static constexpr int kRows = 64 * kGroups, kThreads = 128 * (kGroups + 1);
  static constexpr int kTileBytes = kTileBoxes * kGroups * kBoxBytes;
  static constexpr int kSharedBytes = 1024 + kTileStages * kTileBytes + kStages * 2 * kBoxBytes + kBarrierBytes;

  uint32_t tiles, steps, tile_full, tile_empty, full, empty;

  __device__ explicit Plan(uint32_t memory) {
    tiles = (memory + 1023) / 1024 * 1024;
    steps = tiles + kTileStages * kTileBytes;
    tile_full = steps + kStages * 2 * kBoxBytes;
    tile_empty = tile_full + 8 * kTileStages;
    full = tile_empty + 8 * kTileStages;
    empty = full + 8 * kStages;
    static_assert(8 * 2 * (kTileStages + kStages) <= kBarrierBytes);
  }
  // Rows of matrix `box` of a group's, and of a step.
  __device__ uint32_t tile_box(int stage, int box, int group) const {
    return tiles + static_cast<uint32_t>(stage * kTileBytes + (box * kGroups + group) * kBoxBytes);
  }
  __device__ uint32_t step_box(int stage, int box) const {
    return steps + static_cast<uint32_t>((2 * stage + box) * kBoxBytes);
  }
};

// Registers per thread of the groups that multiply and of the one that loads: they fill the multiprocessor's 65,536.
template <int kGroups>
constexpr int kOwnRegisters = kGroups == 3 ? 160 : 224;
template <int kGroups>
constexpr int kLoaderRegisters = kGroups == 3 ? 32 : 56;

THIMBLE_HOST_DEVICE inline int count_tiles(const Operands& in, int sequences, int heads, int rows) {
  return divide_up(in.positions, rows) * heads * sequences;
}

// Boxes of 64 rows of one head and window; what lies behind its last row arrives as zeros.
inline CUtensorMap map_of(const Bf16Heads& x, int heads, const Operands& in, int64_t sequences) {
  return make_tensor_map(x.data, in.positions, int64_t{heads} * kHead, x.stride, kStep, sequences,
                         in.positions * x.stride);
}

template <typename Plan>
LaunchShape persistent_launch(const Operands& in, int64_t sequences, int heads) {
  const int tiles = count_tiles(in, static_cast<int>(sequences), heads, Plan::kRows);
  return {dim3(static_cast<unsigned>(std::min(multiprocessors(), tiles))), Plan::kThreads, Plan::kSharedBytes, 1,
          /*overlaps=*/true};
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

using namespace sm90;

// A CTA's tiles: to and fro over the grid, so that who begins with a longer one ends with a shorter one.
struct TileTurns {
  int count, turn = 0, index;

  __device__ explicit TileTurns(int tiles) : count(tiles), index(static_cast<int>(blockIdx.x)) {}
  __device__ bool has_tile() const { return index < count; }
  __device__ void advance() {
    ++turn;
    const auto grid = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
    index = turn * grid + (turn % 2 == 0 ? block : grid - 1 - block);
  }
};

// `loaders`: threads that arrive where a step is full.
template <typename Plan, int kGroups>
__device__ void initialise(const Plan& plan, int loaders) {
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kTileStages; ++stage) {
      initialise_barrier(plan.tile_full + 8 * stage, 1);
      initialise_barrier(plan.tile_empty + 8 * stage, 4 * kGroups);
    }
    for (int stage = 0; stage < kStages; ++stage) {
      initialise_barrier(plan.full + 8 * stage, loaders);
      initialise_barrier(plan.empty + 8 * stage, 4 * kGroups);
    }
    fence_stores();  // barriers are seen by the copies
  }
  __syncthreads();
  wait_for_previous();
}

// sums (64, 64) = left (64, head) right (64, head)^T, not waited for.
__device__ inline void start_scores(FragmentValues<kStep>& sums, uint32_t left, uint32_t right) {
  begin_products();
#pragma unroll
  for (int k = 0; k < kHead / 16; ++k)
    multiply_async<Rounded>(sums, operand(left) + 2 * k, operand(right) + 2 * k, k > 0);
  commit_products();
}

// sums (64, head) += weights (64, 64) right (64, head), likewise.
__device__ inline void start_sums(FragmentValues<kHead>& sums, const uint32_t (&weights)[kStep / 16][4],
                                  uint32_t right) {
  begin_products();
#pragma unroll
  for (int k = 0; k < kStep / 16; ++k)
    multiply_async<Rounded, /*kTransposedB=*/true>(sums, weights[k], operand(right + k * 16 * kHead * 2), 1);
  commit_products();
}

__device__ inline void pack_fragment(const FragmentValues<kStep>& values, uint32_t (&to)[kStep / 16][4]) {
#pragma unroll
  for (int k = 0; k < kStep / 16; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      to[k][i] = packed<Rounded>(values[2 * k + i / 2][i % 2 * 2], values[2 * k + i / 2][i % 2 * 2 + 1]);
}

// What a warp knows of the ring of steps.
template <typename Plan>
struct Steps {
  const Plan& plan;
  Ring<kStages> ring;
  int held = -1;  // the stage that products still read

  __device__ explicit Steps(const Plan& p) : plan(p) {}
  __device__ uint32_t box(int i) const { return plan.step_box(ring.index, i); }
  __device__ void wait_for_step() const { wait(plan.full + 8 * ring.index, ring.parity); }
  // The products that read the stage held are done: the loader may have it.
  __device__ void release() {
    if (held >= 0) arrive_as_warp(plan.empty + 8 * held);
    held = -1;
  }
  // To the next step, once products that read this one have been started.
  __device__ void hold_and_advance() {
    held = ring.index;
    ring.advance();
  }
  // Leaves out steps that only other groups use.
  __device__ void pass_on(int count) {
    for (int i = 0; i < count; ++i, ring.advance()) {
      wait_for_step();
      arrive_as_warp(plan.empty + 8 * ring.index);
    }
  }
};

// The boxes of a step's rows of two matrices.
template <typename Plan>
__device__ void load_step(const Plan& plan, const Ring<kStages>& ring, const CUtensorMap& first_map,
                          const CUtensorMap& second_map, int head, int row, int sequence) {
  const uint32_t full = plan.full + 8 * ring.index;
  expect_bytes(full, 2 * kBoxBytes);
  load_box(plan.step_box(ring.index, 0), first_map, head * kHead, row, sequence, full);
  load_box(plan.step_box(ring.index, 1), second_map, head * kHead, row, sequence, full);
}

// A tile's rows of kTileBoxes matrices, group by group.
template <typename Plan, int kGroups, int kTileBoxes>
__device__ void load_tile(const Plan& plan, int stage, const CUtensorMap* const (&maps)[kTileBoxes], int head, int row,
                          int sequence) {
  const uint32_t full = plan.tile_full + 8 * stage;
  expect_bytes(full, Plan::kTileBytes);
#pragma unroll
  for (int box = 0; box < kTileBoxes; ++box)
#pragma unroll
    for (int group = 0; group < kGroups; ++group)
      load_box(plan.tile_box(stage, box, group), *maps[box], head * kHead, row + 64 * group, sequence, full);
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace bf16_attention_sm90
}  // namespace thimble
