// bf16_products_amx.cpp: see bf16_products.h. Compiled for AMX-BF16 and AVX512-BF16: nothing here may be linked by
// others.
#include "runtime/cpu/bf16_pairs.h"

namespace thimble {
namespace {

// A tile has 16 rows of 64 bytes: 16 x 16 of C, 16 rows of A with 16 pairs each, 16 pairs of 16 rows of B.
constexpr int64_t kTile = 16;
constexpr int64_t kRows = 2 * kTile;  // of C that one step makes, with kBf16Panel columns
static_assert(kBf16Panel == 3 * kTile);

// Tiles 0 to 5: C. 6: A, of `pairs` columns. 7: B, of as many rows. Clears them.
void configure_tiles(int64_t pairs) {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes_of_row[16] = {};
    uint8_t rows[16] = {};
  } shapes;
  static_assert(sizeof(shapes) == 64);
  for (int64_t tile = 0; tile < 8; ++tile) {
    shapes.bytes_of_row[tile] = static_cast<uint16_t>(4 * (tile == 6 ? pairs : kTile));
    shapes.rows[tile] = static_cast<uint8_t>(tile == 7 ? pairs : kTile);
  }
  _tile_loadconfig(&shapes);
}

// C = A B^T for kRows rows and a panel's columns, `steps` tiles of pairs deep, or C += it. Strides of A and B are
// fixed.
template <bool kAdds>
void make_tiles(const uint32_t* a, const uint32_t* panel, int64_t steps, float* c, int64_t stride) {
  constexpr int64_t kRowBytes = kMostPairs * 4, kPairBytes = kBf16Panel * 4;
  const int64_t bytes = stride * 4;
  float* const lower = c + kTile * stride;
  if constexpr (kAdds) {
    _tile_loadd(0, c, bytes);
    _tile_loadd(1, c + kTile, bytes);
    _tile_loadd(2, c + 2 * kTile, bytes);
    _tile_loadd(3, lower, bytes);
    _tile_loadd(4, lower + kTile, bytes);
    _tile_loadd(5, lower + 2 * kTile, bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
  }
  for (int64_t step = 0; step < steps; ++step, a += kTile, panel += kTile * kBf16Panel) {
    _tile_loadd(6, a, kRowBytes);
    _tile_loadd(7, panel, kPairBytes);
    _tile_dpbf16ps(0, 6, 7);
    _tile_loadd(7, panel + kTile, kPairBytes);
    _tile_dpbf16ps(1, 6, 7);
    _tile_loadd(7, panel + 2 * kTile, kPairBytes);
    _tile_dpbf16ps(2, 6, 7);
    _tile_loadd(6, a + kTile * kMostPairs, kRowBytes);
    _tile_dpbf16ps(5, 6, 7);
    _tile_loadd(7, panel, kPairBytes);
    _tile_dpbf16ps(3, 6, 7);
    _tile_loadd(7, panel + kTile, kPairBytes);
    _tile_dpbf16ps(4, 6, 7);
  }
  _tile_stored(0, c, bytes);
  _tile_stored(1, c + kTile, bytes);
  _tile_stored(2, c + 2 * kTile, bytes);
  _tile_stored(3, lower, bytes);
  _tile_stored(4, lower + kTile, bytes);
  _tile_stored(5, lower + 2 * kTile, bytes);
}

// The same for the rows and columns that C has, at most as many.
template <bool kAdds>
void make_some(const uint32_t* a, const uint32_t* panel, int64_t steps, MatrixView c) {
  if (c.rows == kRows && c.cols == kBf16Panel) return make_tiles<kAdds>(a, panel, steps, c.data, c.stride);
  alignas(64) float whole[kRows][kBf16Panel] = {};
  if constexpr (kAdds)
    for (int64_t r = 0; r < c.rows; ++r)
      for (int64_t n = 0; n < c.cols; ++n) whole[r][n] = c.row(r)[n];
  make_tiles<kAdds>(a, panel, steps, whole[0], kBf16Panel);
  for (int64_t r = 0; r < c.rows; ++r)
    for (int64_t n = 0; n < c.cols; ++n) c.row(r)[n] = whole[r][n];
}

// C = A B^T of one block, from one of its pairs on, or C += it. a: (C's rows, filled up to a multiple of kRows;
// kMostPairs).
template <bool kAdds>
void make_steps(const uint32_t* a, const uint32_t* panels, int64_t pairs, int64_t from, int64_t steps, MatrixView c) {
  for (int64_t n = 0; n < c.cols; n += kBf16Panel)
    for (int64_t r = 0; r < c.rows; r += kRows)
      make_some<kAdds>(a + r * kMostPairs + from, panels + n * pairs + from * kBf16Panel, steps,
                       c.block_rows(r, least(kRows, c.rows - r)).block_cols(n, least(kBf16Panel, c.cols - n)));
}

void make_block(const uint32_t* a, const uint32_t* panels, int64_t pairs, MatrixView c, bool adds) {
  const int64_t steps = pairs / kTile, rest = pairs % kTile;
  if (steps > 0) {
    configure_tiles(kTile);
    (adds ? make_steps<true> : make_steps<false>)(a, panels, pairs, 0, steps, c);
  }
  if (rest > 0) {
    configure_tiles(rest);
    (adds || steps > 0 ? make_steps<true> : make_steps<false>)(a, panels, pairs, steps * kTile, 1, c);
  }
}

// A in bf16, by block of B's columns: (rows, filled up to a multiple of kRows; kMostPairs) each.
class RoundedRows {
 public:
  RoundedRows(int64_t rows, int64_t blocks)
      : block_((rows + kRows - 1) / kRows * kRows * kMostPairs), pairs_(take_pairs(block_ * blocks)) {}
  void free() { _mm_free(pairs_); }
  uint32_t* block(int64_t k) const { return pairs_ + k * block_; }

 private:
  int64_t block_;
  uint32_t* pairs_;
};

// C = A B^T, or C += it, in the columns of B's blocks of rows [first, last), each for all of B's columns.
void multiply(const RoundedRows& a, const PackedBlocks& blocks, const float* packed, int64_t first, int64_t last,
              MatrixView c, bool adds) {
  for (int64_t i = first; i < last; ++i) {
    const MatrixView part = c.block_cols(blocks.first_row(i), blocks.rows_of(i));
    for (int64_t k = 0; k < blocks.column_blocks(); ++k)
      make_block(a.block(k), reinterpret_cast<const uint32_t*>(packed) + pairs_before(blocks, i, k),
                 pairs_of(blocks.columns_of(k)), part, adds || k > 0);
  }
  _tile_release();
}

void multiply_packed(ConstMatrixView a, const PackedBlocks& blocks, const float* packed, int64_t first, int64_t last,
                     MatrixView c, bool adds) {
  RoundedRows rounded(a.rows, blocks.column_blocks());
  for (int64_t k = 0; k < blocks.column_blocks(); ++k)
    for (int64_t r = 0; r < a.rows; ++r)
      round_row(a.row(r) + blocks.first_column(k), blocks.columns_of(k), rounded.block(k) + r * kMostPairs);
  multiply(rounded, blocks, packed, first, last, c, adds);
  rounded.free();
}

void multiply_packed_tn(ConstMatrixView a, const PackedBlocks& blocks, const float* packed, int64_t first, int64_t last,
                        MatrixView c) {
  RoundedRows rounded(a.cols, blocks.column_blocks());
  const int64_t stride = a.cols + kVector;  // not a power of two, whose multiples share few places in the cache
  uint32_t* const by_pair = take_pairs(kMostPairs * stride);
  const __m512i next_pairs = _mm512_mullo_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                                                _mm512_set1_epi32(static_cast<int>(stride)));
  for (int64_t k = 0; k < blocks.column_blocks(); ++k) {
    const int64_t rows = blocks.columns_of(k);
    round_columns(a, blocks.first_column(k), rows, by_pair, stride);
    for (int64_t c0 = 0; c0 < a.cols; ++c0)
      for (int64_t p = 0; p < pairs_of(rows); p += kVector) {
        const __mmask16 lanes = first_lanes(pairs_of(rows) - p);
        _mm512_mask_storeu_epi32(rounded.block(k) + c0 * kMostPairs + p, lanes,
                                 _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), lanes, next_pairs,
                                                             by_pair + p * stride + c0, sizeof(uint32_t)));
      }
  }
  multiply(rounded, blocks, packed, first, last, c, /*adds=*/true);
  _mm_free(by_pair);
  rounded.free();
}

constexpr Bf16Products kProducts = {"amx_bf16", pack, pack_transposed, multiply_packed, multiply_packed_tn};

}  // namespace

const Bf16Products& bf16_products_amx() { return kProducts; }

}  // namespace thimble
