// cuda_tile_product_sm90.cuh: products of factors of 16 bits by bulk tensor copies and asynchronous tensor cores. A CTA
// computes a tile of 128 x 128 of C, two at a time on a multiprocessor: what one does with its sums hides behind what
// the other multiplies. Nine warps:
//
//   8 multipliers   two warpgroups of 64 rows x 128 columns, sums in registers, from there to a sink
//   1 loader        one thread: tiles of 64 of K, kStages deep     -> full / empty barriers
//
// A factor whose stored rows run along K is loaded as 128 rows of 64, else as two boxes of 64 rows of K by 64 columns,
// which wgmma reads transposed. Tensor maps have a batch's matrices as a third dimension: what lies behind one's last
// row arrives as zeros, not as the next one's first. A sink is a struct of its arguments with
//   __device__ void operator()(FragmentValues<128>& sums, const ProductTile& at) const
// which all threads of a warp call with fragments as cuda_gemm.cuh has them. One that reads memory may have
//   __device__ void prefetch(const ProductTile& at) const
// which they call before they multiply.
#pragma once

#include "runtime/cuda/kernels/cuda_overlap.cuh"
#include "runtime/cuda/kernels/cuda_sm90.cuh"

namespace thimble {

// A lane's place in C: its fragments' first row and their first column.
struct ProductTile {
  int row, first_column, column_tile, matrix;
};

// CTAs take row_group tiles of rows at a time, all columns of them: those that run at once share both factors' tiles.
struct TileGrid {
  int depth, row_tiles, column_tiles, row_group = 1;
};

namespace tile_product_sm90 {

constexpr int kRows = 128, kColumns = 128, kDepth = 64, kStages = 3, kThreads = 288;
constexpr int kABytes = kRows * kDepth * 2, kBBytes = kColumns * kDepth * 2;
constexpr int kSharedBytes = 1024 + kStages * (kABytes + kBBytes) + 16 * kStages;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr uint32_t kHalfBytes = kABytes / 2;  // of a factor's tile

// kAlongDepth: of a tile of 128 x 64, else of 64 x 128 in two boxes.
template <bool kAlongDepth>
__device__ void load_factor(uint32_t to, const CUtensorMap& map, int side, int depth, int matrix, uint32_t barrier) {
  if constexpr (kAlongDepth) {
    sm90::load_box(to, map, depth, side, matrix, barrier);
  } else {
    sm90::load_box(to, map, side, depth, matrix, barrier);
    sm90::load_box(to + kHalfBytes, map, side + 64, depth, matrix, barrier);
  }
}

#endif

template <typename T, bool kAlongA, bool kAlongB, typename Sink>
__global__ void __launch_bounds__(kThreads, 2)
    tile_product_sm90_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                             const TileGrid grid, const __grid_constant__ Sink sink) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using namespace sm90;
  extern __shared__ char shared_memory[];
  const uint32_t first_a = (static_cast<uint32_t>(__cvta_generic_to_shared(shared_memory)) + 1023) / 1024 * 1024;
  const uint32_t first_b = first_a + kStages * kABytes, full = first_b + kStages * kBBytes, empty = full + 8 * kStages;
  int index = static_cast<int>(blockIdx.x);
  const int matrix = index / (grid.row_tiles * grid.column_tiles);
  index %= grid.row_tiles * grid.column_tiles;
  const int first_of_group = index / (grid.row_group * grid.column_tiles) * grid.row_group;
  const int rows_of_group = min(grid.row_group, grid.row_tiles - first_of_group);
  index %= grid.row_group * grid.column_tiles;
  const int first_row = (first_of_group + index % rows_of_group) * kRows, column_tile = index / rows_of_group;
  const int first_column = column_tile * kColumns;
  const int steps = divide_up(grid.depth, kDepth);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      initialise_barrier(full + 8 * stage, 1);
      initialise_barrier(empty + 8 * stage, 2);
    }
    fence_stores();  // barriers are seen by the copies
  }
  __syncthreads();
  wait_for_previous();
  Ring<kStages> ring;
  if (threadIdx.x >= 256) {
    if (threadIdx.x != 256) return;
    for (int step = 0; step < steps; ++step, ring.advance()) {
      const uint32_t barrier = full + 8 * ring.index;
      wait(empty + 8 * ring.index, ring.parity ^ 1);
      expect_bytes(barrier, kABytes + kBBytes);
      load_factor<kAlongA>(first_a + ring.index * kABytes, a, first_row, step * kDepth, matrix, barrier);
      load_factor<kAlongB>(first_b + ring.index * kBBytes, b, first_column, step * kDepth, matrix, barrier);
    }
    return;
  }
  // Bytes, in units of 16, to the next 16 of K: further within swizzled rows, or 16 rows on.
  constexpr int kStepA = kAlongA ? 2 : 128, kStepB = kAlongB ? 2 : 128;
  const int group = static_cast<int>(threadIdx.x) / 128;
  const int row =
      first_row + group * 64 + static_cast<int>(threadIdx.x) % 128 / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
  const ProductTile place{row, first_column, column_tile, matrix};
  if constexpr (requires { sink.prefetch(place); }) sink.prefetch(place);
  FragmentValues<kColumns> sums;
  int previous = 0;
  for (int step = 0; step < steps; ++step, ring.advance()) {
    wait(full + 8 * ring.index, ring.parity);
    begin_products();
    const uint64_t left = operand(first_a + ring.index * kABytes + group * kHalfBytes);
    const uint64_t right = operand(first_b + ring.index * kBBytes, kAlongB ? 16 : kHalfBytes);
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k)
      multiply_async<T, !kAlongA, !kAlongB>(sums, left + kStepA * k, right + kStepB * k, step > 0 || k > 0);
    commit_products();
    wait_for_products<1>();  // the step before this one is done with its stage
    if (step > 0 && threadIdx.x % 128 == 0) arrive(empty + 8 * previous);
    previous = ring.index;
  }
  wait_for_products<0>();
  hold(sums);
  sink(sums, place);
#endif
}

}  // namespace tile_product_sm90

// `a`, `b`: factor_map_sm90() of the factors. Where has_sm90_kernels().
template <typename T, bool kAlongA, bool kAlongB, typename Sink>
void launch_tile_product_sm90(const CUtensorMap& a, const CUtensorMap& b, const TileGrid& grid, int64_t batch,
                              const Sink& sink, cudaStream_t stream) {
  using namespace tile_product_sm90;
  const int64_t tiles = batch * grid.row_tiles * grid.column_tiles;
  if (tiles > INT32_MAX) throw DeviceError("CUDA: a product of " + std::to_string(tiles) + " tiles, at most 2^31 - 1");
  launch_kernel(tile_product_sm90_kernel<T, kAlongA, kAlongB, Sink>,
                {dim3(static_cast<unsigned>(tiles)), kThreads, kSharedBytes, 1, /*overlaps=*/true}, stream, a, b, grid,
                sink);
}

// The boxes in which it is loaded, of `count` matrices of 16-bit elements, `step` elements apart.
inline CUtensorMap factor_map_sm90(const void* data, int64_t rows, int64_t columns, int64_t stride,
                                   bool runs_along_depth, int64_t count = 1, int64_t step = 0) {
  using namespace tile_product_sm90;
  return make_tensor_map(data, rows, columns, stride, runs_along_depth ? kRows : kDepth, count,
                         count == 1 ? rows * stride : step);
}

}  // namespace thimble
