// f64_product.cuh: products of float64 matrices as grids of tiles (f64_tile.cuh). P, Q = sides, multiples of kTile.
#pragma once

#include "gptq/factor/f64_tile.cuh"
#include "runtime/cuda/kernels/cuda_context.cuh"
#include "runtime/tensor/host_device.h"

namespace thimble {

// Grid of one thread per element, `threads` in a CTA, a row per blockIdx.y.
inline dim3 element_grid(int64_t rows, int64_t columns, int threads) {
  return {static_cast<unsigned>(divide_up(columns, threads)), static_cast<unsigned>(rows)};
}

// Which part of a square matrix is not zero.
enum class MatrixPart { kWhole, kLower, kUpper };

// out (Q, P) = a (Q, P) b (P, P), one CTA per tile.
__global__ inline void __launch_bounds__(kTileThreads, 2)
    multiply_kernel(const double* a, const double* b, int64_t padded, MatrixPart part, double* out) {
  extern __shared__ double shared[];
  const int64_t row = blockIdx.y * static_cast<int64_t>(kTile), column = blockIdx.x * static_cast<int64_t>(kTile);
  const int64_t first = part == MatrixPart::kLower ? column : 0;
  const int64_t last = part == MatrixPart::kUpper ? column + kTile : padded;
  TileAccumulator product;
  product.add_long_product(a + row * padded + first, padded, b + first * padded + column, padded,
                           static_cast<int>(last - first), shared);
  product.store(out + row * padded + column, padded);
}

// `part`: of b.
inline void multiply(const double* a, const double* b, int64_t rows, int64_t padded, MatrixPart part, double* out,
                     cudaStream_t stream) {
  const dim3 tiles(static_cast<unsigned>(padded / kTile), static_cast<unsigned>(rows / kTile));
  launch_kernel(multiply_kernel, {tiles, kTileThreads, static_cast<int>(kTileSharedBytes)}, stream, a, b, padded, part,
                out);
}

}  // namespace thimble
