// bf16_products_avx512.cpp: see bf16_products.h. Compiled for AVX512-BF16: nothing here may be linked by others.
#include "runtime/cpu/bf16_pairs.h"

namespace thimble {
namespace {

constexpr int64_t kRows = 8;  // of C that one step makes, with kBf16Panel columns: 24 registers of sums
constexpr int64_t kPanelVectors = kBf16Panel / kVector;

// Rows of A in bf16: pair p of row r lies at pairs[r * row + p * pair].
struct RoundedRows {
  const uint32_t* pairs;
  int64_t row, pair;
};

// C += A B^T for kCount rows and the first `columns` of a panel's. Every element is the sum over pairs in their order.
template <int kCount>
void add_tile(const RoundedRows& a, const uint32_t* panel, int64_t pairs, float* c, int64_t stride, int64_t columns) {
  __m512 sums[kCount][kPanelVectors];
  for (auto& row : sums)
    for (__m512& sum : row) sum = _mm512_setzero_ps();
  for (int64_t p = 0; p < pairs; ++p) {
    __m512bh b[kPanelVectors];
    for (int64_t j = 0; j < kPanelVectors; ++j)
      b[j] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(panel + p * kBf16Panel + j * kVector));
    for (int64_t r = 0; r < kCount; ++r) {
      const auto x =
          reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int32_t>(a.pairs[r * a.row + p * a.pair])));
      for (int64_t j = 0; j < kPanelVectors; ++j) sums[r][j] = _mm512_dpbf16_ps(sums[r][j], x, b[j]);
    }
  }
  for (int64_t r = 0; r < kCount; ++r)
    for (int64_t j = 0; j < kPanelVectors; ++j) {
      const __mmask16 lanes = first_lanes(columns - j * kVector);
      float* at = c + r * stride + j * kVector;
      _mm512_mask_storeu_ps(at, lanes, _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, at), sums[r][j]));
    }
}

using AddTile = void (*)(const RoundedRows&, const uint32_t*, int64_t, float*, int64_t, int64_t);
constexpr AddTile kTiles[kRows] = {add_tile<1>, add_tile<2>, add_tile<3>, add_tile<4>,
                                   add_tile<5>, add_tile<6>, add_tile<7>, add_tile<8>};

// C += A B^T of one block of the packed factor.
void add_block(const RoundedRows& a, const uint32_t* panels, int64_t pairs, MatrixView c) {
  for (int64_t n = 0; n < c.cols; n += kBf16Panel)
    for (int64_t r = 0; r < c.rows; r += kRows) {
      const int64_t rows = least(kRows, c.rows - r);
      kTiles[rows - 1]({a.pairs + r * a.row, a.row, a.pair}, panels + n * pairs, pairs, c.row(r) + n, c.stride,
                       least(kBf16Panel, c.cols - n));
    }
}

void set_zero(MatrixView c) {
  for (int64_t r = 0; r < c.rows; ++r)
    for (int64_t n = 0; n < c.cols; ++n) c.row(r)[n] = 0;
}

// C = A B^T, or C += it, in the columns of B's blocks of rows [first, last).
// round(first column, columns): A's rows in the columns of a block of B's.
template <typename Round>
void multiply_blocks(const PackedBlocks& blocks, const float* packed, int64_t first, int64_t last, MatrixView c,
                     bool adds, const Round& round) {
  for (int64_t k = 0; k < blocks.column_blocks(); ++k) {
    const int64_t columns = blocks.columns_of(k);
    const RoundedRows rounded = round(blocks.first_column(k), columns);
    for (int64_t i = first; i < last; ++i) {
      const MatrixView part = c.block_cols(blocks.first_row(i), blocks.rows_of(i));
      if (k == 0 && !adds) set_zero(part);
      add_block(rounded, reinterpret_cast<const uint32_t*>(packed) + pairs_before(blocks, i, k), pairs_of(columns),
                part);
    }
  }
}

void multiply_packed(ConstMatrixView a, const PackedBlocks& blocks, const float* packed, int64_t first, int64_t last,
                     MatrixView c, bool adds) {
  uint32_t* room = take_pairs(a.rows * kMostPairs);
  auto round = [&](int64_t column, int64_t columns) {
    for (int64_t r = 0; r < a.rows; ++r) round_row(a.row(r) + column, columns, room + r * kMostPairs);
    return RoundedRows{room, kMostPairs, 1};
  };
  multiply_blocks(blocks, packed, first, last, c, adds, round);
  _mm_free(room);
}

void multiply_packed_tn(ConstMatrixView a, const PackedBlocks& blocks, const float* packed, int64_t first, int64_t last,
                        MatrixView c) {
  uint32_t* room = take_pairs(a.cols * kMostPairs);
  auto round = [&](int64_t row, int64_t rows) {
    round_columns(a, row, rows, room, a.cols);
    return RoundedRows{room, 1, a.cols};
  };
  multiply_blocks(blocks, packed, first, last, c, /*adds=*/true, round);
  _mm_free(room);
}

constexpr Bf16Products kProducts = {"avx512_bf16", pack, pack_transposed, multiply_packed, multiply_packed_tn};

}  // namespace

const Bf16Products& bf16_products_avx512() { return kProducts; }

}  // namespace thimble
