// gemm.cpp: cuts products into fixed tiles for the thread pool.
#include "runtime/cpu/gemm.h"

#include <algorithm>

#include "runtime/base/parallel.h"
#include "runtime/cpu/bf16_products.h"
#include "runtime/cpu/cpu_gradient_kernels.h"
#include "runtime/cpu/cpu_kernels.h"

namespace thimble {
namespace {

// Tiles are large enough for Eigen's kernel to reach its peak and small enough to spread over a few cores.
constexpr int64_t kTileRows = 512;
constexpr int64_t kTileCols = 512;
// With few rows (cached generation) narrower tiles keep every thread busy.
constexpr int64_t kNarrowTileCols = 64;
// A multiple of the rows that Eigen's kernel takes at a time: those beyond such a multiple it adds up in another order.
constexpr int64_t kKernelRows = 8;
// Floats of a packed factor, or of the part of it that one row of blocks is: what a product takes for it at a time.
constexpr int64_t kMostPacked = int64_t{1} << 22;
// Tasks for each thread that a product is cut into where its rows alone make fewer.
constexpr int64_t kTasksPerThread = 3;

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

// Room for a packed factor.
class UninitializedFloats {
 public:
  explicit UninitializedFloats(int64_t count)
      : count_(static_cast<size_t>(count)), data_(AlignedAllocator<float>().allocate(count_)) {}
  ~UninitializedFloats() { AlignedAllocator<float>().deallocate(data_, count_); }
  UninitializedFloats(const UninitializedFloats&) = delete;
  UninitializedFloats& operator=(const UninitializedFloats&) = delete;
  float* data() const { return data_; }

 private:
  size_t count_;
  float* data_;
};

// A product with `rows` rows and `columns` columns, of sums of `depth`. Of columns that begin beyond row + kTileRows
// nothing is computed for a tile that begins in `row`, where only the lower triangle is wanted.
//   pack(first, part, i, k, packed): block (i, k) of a part of the factor, the first row of which is `first` of it
//   multiply(row, rows, part, packed, first block, last block, first): of the product's rows, with blocks of the part
//   blocks_of(rows, depth): how a part of so many rows is packed
template <typename BlocksOf, typename Pack, typename MultiplyPacked>
void multiply_in_parts(int64_t rows, int64_t columns, int64_t depth, bool is_lower, const BlocksOf& blocks_of,
                       const Pack& pack, const MultiplyPacked& multiply) {
  const int64_t row_blocks = std::max<int64_t>(1, kMostPacked / std::max<int64_t>(1, depth) / PackedBlocks::kBlockRows);
  const int64_t part_columns = row_blocks * PackedBlocks::kBlockRows;
  const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  const UninitializedFloats packed(blocks_of(std::min(part_columns, columns), depth).count());
  for (int64_t first = 0; first < columns; first += part_columns) {
    const PackedBlocks part = blocks_of(std::min(part_columns, columns - first), depth);
    const int64_t deep = part.column_blocks();
    parallel_for(part.row_blocks() * deep,
                 [&](int64_t block) { pack(first, part, block / deep, block % deep, packed.data()); });
    const int64_t groups = std::clamp<int64_t>(kTasksPerThread * thread_count() / tiles, 1, part.row_blocks());
    parallel_for(tiles * groups, [&](int64_t task) {
      // Of a triangle, the last tiles are the longest.
      const int64_t tile = tiles - 1 - task / groups, group = task % groups, r = tile * kTileRows;
      const Share share =
          share_of(static_cast<size_t>(part.row_blocks()), static_cast<size_t>(group), static_cast<size_t>(groups));
      const auto begin = static_cast<int64_t>(share.begin);
      auto end = static_cast<int64_t>(share.end);
      while (is_lower && end > begin && first + part.first_row(end - 1) >= r + kTileRows) --end;
      if (begin < end) multiply(r, std::min(kTileRows, rows - r), part, packed.data(), begin, end, first);
    });
  }
}

using PackBlock = decltype(CpuKernels::pack);

// The kernels of a product, null for float32's.
const Bf16Products* bf16_kernels(ProductArithmetic arithmetic) {
  return arithmetic == ProductArithmetic::kBf16 ? bf16_products() : nullptr;
}

auto blocks_for(const Bf16Products* bf16) {
  return [bf16](int64_t rows, int64_t depth) { return bf16 ? bf16_blocks(rows, depth) : PackedBlocks{rows, depth}; };
}

// C += X^T Y.
void accumulate_tn(ConstMatrixView x, ConstMatrixView y, MatrixView c, bool is_lower, ProductArithmetic arithmetic) {
  const CpuGradientKernels& kernels = cpu_gradient_kernels();
  const Bf16Products* bf16 = bf16_kernels(arithmetic);
  const auto pack = bf16 ? bf16->pack_transposed : kernels.pack_transposed;
  const auto multiply = bf16 ? bf16->multiply_packed_tn : kernels.multiply_packed_tn;
  multiply_in_parts(
      x.cols, y.cols, x.rows, is_lower, blocks_for(bf16),
      [&](int64_t first, const PackedBlocks& part, int64_t i, int64_t k, float* packed) {
        pack(y.block_cols(first, part.rows), part, i, k, packed);
      },
      [&](int64_t r, int64_t rows, const PackedBlocks& part, const float* packed, int64_t begin, int64_t end,
          int64_t first) {
        multiply(x.block_cols(r, rows), part, packed, begin, end, c.block_rows(r, rows).block_cols(first, part.rows));
      });
}

// C = A F^T, or C += it, for many rows. `pack`: a kernel's; part_of(first, rows): what it reads of the factor F (N, K).
template <typename PartOf>
void multiply_rows(ConstMatrixView a, MatrixView c, bool adds, const Bf16Products* bf16, PackBlock pack,
                   const PartOf& part_of) {
  const auto multiply = bf16 ? bf16->multiply_packed : cpu_kernels().multiply_packed;
  multiply_in_parts(
      a.rows, c.cols, a.cols, false, blocks_for(bf16),
      [&](int64_t first, const PackedBlocks& part, int64_t i, int64_t k, float* packed) {
        pack(part_of(first, part.rows), part, i, k, packed);
      },
      [&](int64_t r, int64_t rows, const PackedBlocks& part, const float* packed, int64_t begin, int64_t end,
          int64_t first) {
        multiply(a.block_rows(r, rows), part, packed, begin, end, c.block_rows(r, rows).block_cols(first, part.rows),
                 adds);
      });
}

// Do so many rows pay for packing the other factor?
bool has_many_rows(ConstMatrixView a) { return a.rows > kMostFewRows && a.cols > 0; }

}  // namespace

void multiply_nt(ConstMatrixView a, const StoredMatrixView& b, MatrixView c, ProductArithmetic arithmetic) {
  if (has_many_rows(a)) {
    const Bf16Products* bf16 = bf16_kernels(arithmetic);
    return multiply_rows(a, c, false, bf16, bf16 ? bf16->pack : cpu_kernels().pack,
                         [&](int64_t first, int64_t rows) { return b.block_rows(first, rows); });
  }
  if (a.rows > 1 && a.rows % kKernelRows != 0) return multiply_padded_nt(a, b, c);
  for_each_tile(a.rows, b.rows, kTileRows, kNarrowTileCols, [&](int64_t r, int64_t rows, int64_t n, int64_t cols) {
    cpu_kernels().gemm_nt(a.block_rows(r, rows), b.block_rows(n, cols), c.block_rows(r, rows).block_cols(n, cols));
  });
}

void multiply_nn(ConstMatrixView a, const StoredMatrixView& b, MatrixView c, bool adds, ProductArithmetic arithmetic) {
  if (has_many_rows(a)) {
    const Bf16Products* bf16 = bf16_kernels(arithmetic);
    return multiply_rows(a, c, adds, bf16, bf16 ? bf16->pack_transposed : cpu_gradient_kernels().pack_transposed,
                         [&](int64_t first, int64_t rows) { return b.block_cols(first, rows); });
  }
  for_each_tile(c.rows, c.cols, kTileRows, kTileCols, [&](int64_t r, int64_t rows, int64_t n, int64_t cols) {
    cpu_gradient_kernels().gemm_nn(a.block_rows(r, rows), b.block_cols(n, cols),
                                   c.block_rows(r, rows).block_cols(n, cols), adds);
  });
}

void accumulate_gram_lower(ConstMatrixView x, MatrixView c, ProductArithmetic arithmetic) {
  accumulate_tn(x, x, c, true, arithmetic);
}

void accumulate_cross(ConstMatrixView x, ConstMatrixView y, MatrixView c, ProductArithmetic arithmetic) {
  accumulate_tn(x, y, c, false, arithmetic);
}

void subtract_product(ConstMatrixViewF64 a, ConstMatrixViewF64 b, MatrixViewF64 c) {
  cpu_gradient_kernels().gemm_nn_sub_f64(a, b, c);
}

}  // namespace thimble
