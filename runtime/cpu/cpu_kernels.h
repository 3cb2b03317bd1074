// cpu_kernels.h: the table of the forward pass's kernels, which are compiled once per instruction set
// (cpu_kernels.cpp). Internal to runtime/. Every kernel runs on the calling thread; parallel loops are the callers'
// business.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/ops/activation.h"
#include "runtime/ops/attention_window.h"
#include "runtime/tensor/matrix.h"
#include "runtime/tensor/stored_matrix.h"

namespace thimble {

struct Rounding;      // rounding.h
struct TileProducts;  // tile_products.h

// Rounds n elements in place. A function of the callers': these kernels must define nothing that others could link.
struct RowRounding {
  const Rounding* rounding = nullptr;  // null: exact
  void (*apply)(const Rounding& rounding, float* x, int64_t n) = nullptr;
};

// So many queries or fewer are bound by reading keys and values.
constexpr int64_t kFewQueries = 4;

// One tile of causal attention for one head, or of at most kFewQueries for consecutive heads with the same keys and
// values: `rows` consecutive queries of one sequence, the first at `first_position`. All pointers, here and in the
// calls with a tile, are to the first head's first column, all columns of k and v are the head's.
struct AttentionTile {
  const float* q;  // queries of the tile
  int64_t q_stride;
  StoredMatrixView k, v;  // (first_position + rows, head_dim) of its sequence and head; BF16 for at most kFewQueries
  int64_t rows, first_position, head_dim;
  int64_t window;  // attention_window.h
  float scale;     // of q k^T
  bool exclusive;
  float* scratch;  // heads * rows * (first_position + rows) floats, for the backward pass attention_gradient_scratch()
  int64_t heads = 1;
  const TileProducts* products = nullptr;  // of more than kFewQueries; null: float32's
};

struct AttentionRoundings {
  RowRounding scores, weights;
};

// How a factor B (N, K) of products with many rows is cut: blocks, each put into the order that the kernel reads, one
// after the other. Sizes are fixed, for sums follow from them.
struct PackedBlocks {
  static constexpr int64_t kBlockRows = 192, kBlockColumns = 256;  // a multiple of what any kernel takes at a time

  int64_t rows, columns;
  // Rows and columns of blocks that are filled up to a multiple of these.
  int64_t row_multiple = 1, column_multiple = 1;

  int64_t row_blocks() const { return (rows + kBlockRows - 1) / kBlockRows; }
  int64_t column_blocks() const { return (columns + kBlockColumns - 1) / kBlockColumns; }
  int64_t first_row(int64_t i) const { return i * kBlockRows; }
  int64_t first_column(int64_t k) const { return k * kBlockColumns; }
  int64_t rows_of(int64_t i) const { return std::min(kBlockRows, rows - first_row(i)); }
  int64_t columns_of(int64_t k) const { return std::min(kBlockColumns, columns - first_column(k)); }
  // Where a block lies, in elements, and how many all together are.
  int64_t offset(int64_t i, int64_t k) const {
    return filled(rows, row_multiple) * first_column(k) + filled(columns_of(k), column_multiple) * first_row(i);
  }
  int64_t count() const { return filled(rows, row_multiple) * filled(columns, column_multiple); }

 private:
  static int64_t filled(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
};

// n is a row's width. Rows of one call never overlap unless a comment says that output may be input.
struct CpuKernels {
  const char* name;

  // C (M,N) = A (M,K) B^T with B (N,K).
  void (*gemm_nt)(ConstMatrixView a, const StoredMatrixView& b, MatrixView c);
  // The same for many rows, B first: its block (i, k), to its place in `packed`; then, from all blocks of the rows of B
  // [first, last), the columns of C that these are, or C += A B^T there.
  void (*pack)(const StoredMatrixView& b, const PackedBlocks& blocks, int64_t i, int64_t k, float* packed);
  void (*multiply_packed)(ConstMatrixView a, const PackedBlocks& blocks, const float* packed, int64_t first,
                          int64_t last, MatrixView c, bool adds);

  // Row operations, as network.h names and defines them.
  void (*add_scaled)(const float* a, float scale, float* x, int64_t n);
  void (*add)(const float* a, const float* scale, float* x, int64_t n);
  // y may be x; a null gain is 1.
  void (*rms_norm)(const float* x, const float* gain, float factor, float epsilon, float* y, int64_t n);
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float epsilon, float* y,
                     int64_t n);  // y may be x
  void (*smear)(const float* x, const float* before, const float* gate, float* out, int64_t n);
  void (*gated_skip)(const float* skip, const float* weight, const float* gate, float* x, int64_t n);
  void (*mix)(const float* x, const float* a, const float* first, const float* second, float* y, int64_t n);
  void (*multiply)(const float* x, const float* a, float* y, int64_t n);  // y = x * a; y may be x
  // The first 2*half dimensions of one head, by the angles times `turn`: 1, or -1 for the transpose.
  void (*rotate)(float* x, const float* cosine, const float* sine, int64_t half, float turn);
  void (*activate)(Activation activation, float* z, int64_t n);
  void (*softcap)(float cap, float* x, int64_t n);
  void (*round_to_bf16)(float* x, int64_t n);
  void (*attention)(const AttentionTile& tile, float* y, int64_t y_stride, const AttentionRoundings& roundings);
};

// The best table for this machine (see cpu_instruction_set()).
const CpuKernels& cpu_kernels();

// One per compiled instruction set; declared for all, defined for those that the build has.
const CpuKernels& cpu_kernels_portable();
const CpuKernels& cpu_kernels_avx2();
const CpuKernels& cpu_kernels_avx512();

}  // namespace thimble
