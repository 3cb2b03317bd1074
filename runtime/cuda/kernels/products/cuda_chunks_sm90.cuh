// cuda_chunks_sm90.cuh: the sums of cuda_tile_product_sm90.cuh as chunks of 16 bytes, eight neighbouring columns of a
// row in each lane, as memory wants them.
#pragma once

#include "runtime/cuda/kernels/cuda_numeric.cuh"
#include "runtime/cuda/kernels/cuda_tile_product_sm90.cuh"

namespace thimble {

// Of a quad's four lanes, each with four words: lane t gets word t of all of them, in their order.
__device__ inline void transpose_in_quad(uint32_t (&words)[4]) {
#pragma unroll
  for (int distance = 1; distance <= 2; distance *= 2) {
    const bool is_upper = threadIdx.x & static_cast<unsigned>(distance);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & distance) continue;
      uint32_t &low = words[i], &high = words[i + distance];
      const uint32_t received = __shfl_xor_sync(~0u, is_upper ? low : high, distance);
      (is_upper ? low : high) = received;
    }
  }
}

// Where a lane's chunk i of kColumns / 16 begins.
struct ChunkPlace {
  int row, column;
};
__device__ inline ChunkPlace chunk_place(const ProductTile& at, int i) {
  return {at.row + i % 2 * 8, at.first_column + i / 2 * 32 + static_cast<int>(threadIdx.x) % 4 * 8};
}

// Asks for a lane's chunks of what lies there, (rows, columns), before it is read.
template <int kColumns, typename Matrix>
__device__ void prefetch_chunks(const Matrix& m, const ProductTile& at) {
#pragma unroll
  for (int i = 0; i < kColumns / 16; ++i) {
    const auto [row, column] = chunk_place(at, i);
    if (row < m.rows && column < m.columns)
      asm volatile("prefetch.global.L2 [%0];\n" ::"l"(m.data + row * m.stride + column));
  }
}

// A lane's sums of a row in four neighbouring fragments, columns 8j + 2t + {0,1} of each in lane t of a quad, of which
// it gets the chunk that begins there.
struct ChunkSums {
  float2 pairs[4];
  ChunkPlace at;

  // All lanes of a warp call these.
  __device__ Stored8<__nv_bfloat16> rounded() const {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = packed<__nv_bfloat16>(pairs[i].x, pairs[i].y);
    transpose_in_quad(words);
    return {{words[0], words[1], words[2], words[3]}};
  }
  __device__ void unpack(float (&v)[8]) const {
    uint32_t left[4], right[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) left[i] = __float_as_uint(pairs[i].x), right[i] = __float_as_uint(pairs[i].y);
    transpose_in_quad(left);
    transpose_in_quad(right);
#pragma unroll
    for (int i = 0; i < 4; ++i) v[2 * i] = __uint_as_float(left[i]), v[2 * i + 1] = __uint_as_float(right[i]);
  }
};

// body(ChunkSums, i) for each of them.
template <int kColumns, typename Body>
__device__ void for_each_chunk(const FragmentValues<kColumns>& sums, const ProductTile& at, const Body& body) {
#pragma unroll
  for (int i = 0; i < kColumns / 16; ++i) {
    ChunkSums chunk{{}, chunk_place(at, i)};
#pragma unroll
    for (int k = 0; k < 4; ++k) chunk.pairs[k] = {sums[i / 2 * 4 + k][i % 2 * 2], sums[i / 2 * 4 + k][i % 2 * 2 + 1]};
    body(chunk, i);
  }
}

}  // namespace thimble
