// f64_tile.cuh: products of 64 x 64 float64 tiles on the tensor cores, the building block of the factorisation and of
// the solver. One CTA of 256 threads computes one tile; the order of its additions is fixed.
#pragma once

#include <cuda_pipeline.h>
#include <mma.h>

#include <cstdint>

namespace thimble {

constexpr int kTile = 64;
constexpr int kTileThreads = 256;
// Rows of tiles in shared memory are 4 elements apart from a multiple of the 16 double-wide banks: fragments of 4 x 4
// elements touch each bank once.
constexpr int kTileStride = kTile + 4;
constexpr int kTileElements = kTile * kTileStride;

// Long products pass through shared memory in slabs of 32: 64 x 32 of A and 32 x 64 of B, two of each.
constexpr int kSlab = kTile / 2;
constexpr int kSlabStride = kSlab + 4;
constexpr int kSlabElements = kTile * kSlabStride + kSlab * kTileStride;

// What kernels over tiles need: two tiles, or two pairs of slabs.
constexpr size_t kTileSharedBytes =
    2 * (kSlabElements > kTileElements ? kSlabElements : kTileElements) * sizeof(double);

// Copies a tile, rows `to_stride` and `from_stride` elements apart and 16-byte aligned.
__device__ inline void copy_tile(double* to, int64_t to_stride, const double* from, int64_t from_stride) {
#pragma unroll
  for (int i = 0; i < kTile * kTile / 2 / kTileThreads; ++i) {
    int pair = threadIdx.x + i * kTileThreads, row = pair / (kTile / 2), column = pair % (kTile / 2) * 2;
    *reinterpret_cast<double2*>(to + row * to_stride + column) =
        *reinterpret_cast<const double2*>(from + row * from_stride + column);
  }
}
// Into shared memory.
__device__ inline void load_tile(double* tile, const double* from, int64_t stride) {
  copy_tile(tile, kTileStride, from, stride);
}

// A 64 x 64 tile spread over the CTA's registers.
//
//   columns   0..31     32..63
//   rows 0..15   warp 0    warp 4        each warp: 2 x 4 fragments of 8 x 8
//   rows 16..31  warp 1    warp 5
//   rows 32..47  warp 2    warp 6
//   rows 48..63  warp 3    warp 7
class TileAccumulator {
 public:
  __device__ TileAccumulator() {
    for (auto& row : sums_)
      for (auto& fragment : row) nvcuda::wmma::fill_fragment(fragment, 0.0);
  }

  // += A B of tiles in shared memory, or A B^T. All threads; the tiles must stay until a barrier follows.
  template <bool kTransposeB>
  __device__ void add_product(const double* a, const double* b) {
    add<kTransposeB, kTile, kTileStride>(a, b);
  }

  // += A (64, depth) B (depth, 64) from device memory, rows `stride_a` and `stride_b` elements apart and 16-byte
  // aligned; depth a multiple of kSlab. While one slab is multiplied, the next one is on its way. Uses kTileSharedBytes
  // of shared memory; begins and ends with all threads done with it, if they were before.
  __device__ void add_long_product(const double* a, int64_t stride_a, const double* b, int64_t stride_b, int depth,
                                   double* shared) {
    load_slab(shared, a, stride_a, b, stride_b, 0, depth);
    for (int k = 0; k < depth; k += kSlab) {
      double* slab = shared + k / kSlab % 2 * kSlabElements;
      load_slab(shared + (k / kSlab + 1) % 2 * kSlabElements, a, stride_a, b, stride_b, k + kSlab, depth);
      __pipeline_wait_prior(1);
      __syncthreads();
      add<false, kSlab, kSlabStride>(slab, slab + kTile * kSlabStride);
      __syncthreads();
    }
  }

  // tile = sign * sums; any memory whose rows are `stride` elements apart (a multiple of 4).
  __device__ void store(double* tile, int64_t stride, double sign = 1) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        for (double& value : sums_[i][j].x) value *= sign;
        nvcuda::wmma::store_matrix_sync(at(tile, stride, i, j), sums_[i][j], static_cast<unsigned>(stride),
                                        nvcuda::wmma::mem_row_major);
      }
  }

  // sums = tile, as store() left them.
  __device__ void load(const double* tile, int64_t stride) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        nvcuda::wmma::load_matrix_sync(sums_[i][j], at(tile, stride, i, j), static_cast<unsigned>(stride),
                                       nvcuda::wmma::mem_row_major);
  }

  // tile -= sums
  __device__ void subtract_from(double* tile, int64_t stride) const {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        Sums old;
        nvcuda::wmma::load_matrix_sync(old, at(tile, stride, i, j), static_cast<unsigned>(stride),
                                       nvcuda::wmma::mem_row_major);
        for (int e = 0; e < old.num_elements; ++e) old.x[e] -= sums_[i][j].x[e];
        nvcuda::wmma::store_matrix_sync(at(tile, stride, i, j), old, static_cast<unsigned>(stride),
                                        nvcuda::wmma::mem_row_major);
      }
  }

 private:
  using Sums = nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 8, 8, 4, double>;

  template <bool kTransposeB, int kDepth, int kStrideA>
  __device__ void add(const double* a, const double* b) {
    using namespace nvcuda::wmma;
    using LayoutB = std::conditional_t<kTransposeB, col_major, row_major>;
#pragma unroll 4
    for (int k = 0; k < kDepth; k += 4) {
      fragment<matrix_a, 8, 8, 4, double, row_major> left[2];
      fragment<matrix_b, 8, 8, 4, double, LayoutB> right[4];
#pragma unroll
      for (int i = 0; i < 2; ++i) load_matrix_sync(left[i], a + (first_row() + 8 * i) * kStrideA + k, kStrideA);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        int column = first_column() + 8 * j;
        load_matrix_sync(right[j], kTransposeB ? b + column * kTileStride + k : b + k * kTileStride + column,
                         kTileStride);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) mma_sync(sums_[i][j], left[i], right[j], sums_[i][j]);
    }
  }

  // Begins to copy columns [k, k + kSlab) of A and rows [k, k + kSlab) of B; nothing at k = depth.
  __device__ static void load_slab(double* slab, const double* a, int64_t stride_a, const double* b, int64_t stride_b,
                                   int k, int depth) {
    constexpr int kPairs = kTile * kSlab / 2 / kTileThreads;
    if (k < depth) {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        int pair = threadIdx.x + i * kTileThreads;
        int row = pair / (kSlab / 2), column = pair % (kSlab / 2) * 2;
        __pipeline_memcpy_async(slab + row * kSlabStride + column, a + row * stride_a + k + column, 16);
        row = pair / (kTile / 2), column = pair % (kTile / 2) * 2;
        __pipeline_memcpy_async(slab + kTile * kSlabStride + row * kTileStride + column,
                                b + (k + row) * stride_b + column, 16);
      }
    }
    __pipeline_commit();
  }

  __device__ static int first_row() { return static_cast<int>(threadIdx.x) / 32 % 4 * 16; }
  __device__ static int first_column() { return static_cast<int>(threadIdx.x) / 128 * 32; }
  template <typename T>
  __device__ static T* at(T* tile, int64_t stride, int i, int j) {
    return tile + (first_row() + 8 * i) * stride + first_column() + 8 * j;
  }

  Sums sums_[2][4];
};

}  // namespace thimble
