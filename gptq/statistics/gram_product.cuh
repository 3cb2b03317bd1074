// gram_product.cuh: X^T X of many pieces of activations at once, in tiles of the lower triangle.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace thimble {

constexpr int kGramTile = 128;
constexpr int64_t kGramTileElements = kGramTile * kGramTile;

// Tiles (i, j) with j <= i of a matrix of `columns` columns, in the order (0, 0), (1, 0), (1, 1), (2, 0), ...
constexpr int64_t gram_tiles(int64_t columns) {
  int64_t side = (columns + kGramTile - 1) / kGramTile;
  return side * (side + 1) / 2;
}
struct GramTile {
  int64_t row, column;  // of the tile's first element
};
__device__ inline GramTile gram_tile(int64_t index) {
  int64_t i = 0;
  while (index > i) index -= ++i;
  return {i * kGramTile, index * kGramTile};
}

// x (sequences * T, K), each sequence cut into pieces of at most kPieceTokens tokens.
template <typename T>
struct GramInput {
  static constexpr int64_t kPieceTokens = 2048;

  const T* x = nullptr;
  int64_t stride = 0;  // elements between rows
  int64_t tokens = 0;  // T
  int64_t columns = 0;

  __host__ __device__ int64_t pieces() const { return (tokens + kPieceTokens - 1) / kPieceTokens; }  // per sequence
};

// Enqueues products[p * tiles + t] (kGramTile, kGramTile) = tile t of the Gram matrix of piece first_piece + p, pieces
// counted through all sequences. Rows and columns beyond K hold rubbish.
void multiply_gram(const GramInput<__nv_bfloat16>& input, int64_t first_piece, int64_t piece_count, float* products,
                   cudaStream_t stream);
void multiply_gram(const GramInput<__half>& input, int64_t first_piece, int64_t piece_count, float* products,
                   cudaStream_t stream);
void multiply_gram(const GramInput<float>& input, int64_t first_piece, int64_t piece_count, float* products,
                   cudaStream_t stream);

}  // namespace thimble
