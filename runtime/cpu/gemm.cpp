// gemm.cpp: cuts products into fixed tiles for the thread pool.
#include "runtime/cpu/gemm.h"

#include <algorithm>

#include "runtime/base/parallel.h"
#include "runtime/cpu/cpu_gradient_kernels.h"
#include "runtime/cpu/cpu_kernels.h"

namespace thimble {
namespace {

// Tiles are large enough for Eigen's kernel to reach its peak and small enough to spread over a few cores.
constexpr int64_t kTileRows = 256;
constexpr int64_t kTileCols = 512;
// With few rows (cached generation) narrower tiles keep every thread busy.
constexpr int64_t kNarrowTileCols = 64;
// A multiple of the rows that Eigen's kernel takes at a time: those beyond such a multiple it adds up in another order.
constexpr int64_t kKernelRows = 8;
constexpr int64_t kGramTile = 256;

// body(first row, rows, first column, columns) for the tiles of a matrix.
template <typename Body>
void for_each_tile(int64_t rows, int64_t cols, int64_t tile_rows, int64_t tile_cols, const Body& body) {
  const int64_t row_tiles = (rows + tile_rows - 1) / tile_rows, col_tiles = (cols + tile_cols - 1) / tile_cols;
  parallel_for(row_tiles * col_tiles, [&](int64_t tile) {
    const int64_t r = tile / col_tiles * tile_rows, n = tile % col_tiles * tile_cols;
    body(r, std::min(tile_rows, rows - r), n, std::min(tile_cols, cols - n));
  });
}

// multiply_nt with rows of zeros after those of `a`.
void multiply_padded_nt(ConstMatrixView a, const StoredMatrixView& b, MatrixView c) {
  int64_t rows = (a.rows + kKernelRows - 1) / kKernelRows * kKernelRows;
  Matrix padded(rows, a.cols), product(rows, c.cols);
  for (int64_t r = 0; r < a.rows; ++r) std::copy(a.row(r), a.row(r) + a.cols, padded.row(r));
  multiply_nt(padded, b, product);
  for (int64_t r = 0; r < a.rows; ++r) std::copy(product.row(r), product.row(r) + c.cols, c.row(r));
}

}  // namespace

void multiply_nt(ConstMatrixView a, const StoredMatrixView& b, MatrixView c) {
  if (a.rows > 1 && a.rows < kMostFewRows && a.rows % kKernelRows != 0) return multiply_padded_nt(a, b, c);
  const int64_t tile_cols = a.rows <= kMostFewRows ? kNarrowTileCols : kTileCols;
  for_each_tile(a.rows, b.rows, kTileRows, tile_cols, [&](int64_t r, int64_t rows, int64_t n, int64_t cols) {
    cpu_kernels().gemm_nt(a.block_rows(r, rows), b.block_rows(n, cols), c.block_rows(r, rows).block_cols(n, cols));
  });
}

void multiply_nn(ConstMatrixView a, const StoredMatrixView& b, MatrixView c, bool adds) {
  for_each_tile(c.rows, c.cols, kTileRows, kTileCols, [&](int64_t r, int64_t rows, int64_t n, int64_t cols) {
    cpu_gradient_kernels().gemm_nn(a.block_rows(r, rows), b.block_cols(n, cols),
                                   c.block_rows(r, rows).block_cols(n, cols), adds);
  });
}

void accumulate_gram_lower(ConstMatrixView x, MatrixView c) {
  for_each_tile(x.cols, x.cols, kGramTile, kGramTile, [&](int64_t r, int64_t rows, int64_t n, int64_t cols) {
    if (n > r) return;
    cpu_gradient_kernels().gemm_tn_add(x.block_cols(r, rows), x.block_cols(n, cols),
                                       c.block_rows(r, rows).block_cols(n, cols));
  });
}

void accumulate_cross(ConstMatrixView x, ConstMatrixView y, MatrixView c) {
  for_each_tile(x.cols, y.cols, kGramTile, kGramTile, [&](int64_t r, int64_t rows, int64_t n, int64_t cols) {
    cpu_gradient_kernels().gemm_tn_add(x.block_cols(r, rows), y.block_cols(n, cols),
                                       c.block_rows(r, rows).block_cols(n, cols));
  });
}

void subtract_product(ConstMatrixViewF64 a, ConstMatrixViewF64 b, MatrixViewF64 c) {
  cpu_gradient_kernels().gemm_nn_sub_f64(a, b, c);
}

}  // namespace thimble
