// bf16_products_avx512.cpp: see bf16_products.h. Compiled for AVX512-BF16: nothing here may be linked by others.
#include "runtime/cpu/bf16_products.h"

#include <immintrin.h>

namespace thimble {
namespace {

constexpr int64_t kVector = 16;  // float32 in a register
constexpr int64_t kRows = 8;     // of C that one step makes, with kBf16Panel columns: 24 registers of sums
constexpr int64_t kPanelVectors = kBf16Panel / kVector;
constexpr int64_t kMostPairs = PackedBlocks::kBlockColumns / 2;
static_assert(PackedBlocks::kBlockRows % kBf16Panel == 0 && PackedBlocks::kBlockColumns % 2 == 0);

constexpr int64_t pairs_of(int64_t columns) { return (columns + 1) / 2; }
constexpr int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

__mmask16 first_lanes(int64_t count) {
  return count >= kVector ? __mmask16(0xffff) : count <= 0 ? __mmask16(0) : __mmask16((1u << count) - 1);
}

// n numbers in bf16, with a zero after an odd number of them.
void round_row(const float* x, int64_t n, uint32_t* pairs) {
  for (int64_t c = 0; c < n; c += 2 * kVector) {
    const __m512 low = _mm512_maskz_loadu_ps(first_lanes(n - c), x + c);
    const __m512 high = _mm512_maskz_loadu_ps(first_lanes(n - c - kVector), x + c + kVector);
    _mm512_mask_storeu_epi32(pairs + c / 2, first_lanes(pairs_of(n - c)),
                             reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
  }
}

// Of two rows, elements of one column together; a null second row is zero.
void round_two_rows(const float* x, const float* y, int64_t n, uint32_t* pairs) {
  const __m512i zipped = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                          21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  for (int64_t c = 0; c < n; c += kVector) {
    const __mmask16 lanes = first_lanes(n - c);
    const __m512 first = _mm512_maskz_loadu_ps(lanes, x + c);
    const __m512 second = y ? _mm512_maskz_loadu_ps(lanes, y + c) : _mm512_setzero_ps();
    const auto rounded = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
    _mm512_mask_storeu_epi32(pairs + c, lanes, _mm512_permutexvar_epi16(zipped, rounded));
  }
}

// Elements of a row of a block in float32, where they lie or in `room`.
const float* floats_of(const StoredMatrixView& m, int64_t row, float* room) {
  if (m.is_float32()) return m.float32().row(row);
  m.read_row(row, room);
  return room;
}

// Where a block's pairs begin.
int64_t pairs_before(const PackedBlocks& blocks, int64_t i, int64_t k) { return blocks.offset(i, k) / 2; }

void pack(const StoredMatrixView& b, const PackedBlocks& blocks, int64_t i, int64_t k, float* packed) {
  const int64_t rows = blocks.rows_of(i), columns = blocks.columns_of(k), pairs = pairs_of(columns);
  const StoredMatrixView block = b.block_rows(blocks.first_row(i), rows).block_cols(blocks.first_column(k), columns);
  uint32_t* panel = reinterpret_cast<uint32_t*>(packed) + pairs_before(blocks, i, k);
  float room[PackedBlocks::kBlockColumns];
  uint32_t row[kMostPairs];
  for (int64_t first = 0; first < rows; first += kBf16Panel, panel += pairs * kBf16Panel)
    for (int64_t r = 0; r < kBf16Panel; ++r) {
      if (first + r < rows) round_row(floats_of(block, first + r, room), columns, row);
      for (int64_t p = 0; p < pairs; ++p) panel[p * kBf16Panel + r] = first + r < rows ? row[p] : 0;
    }
}

void pack_transposed(const StoredMatrixView& b, const PackedBlocks& blocks, int64_t i, int64_t k, float* packed) {
  const int64_t rows = blocks.rows_of(i), columns = blocks.columns_of(k), pairs = pairs_of(columns);
  const StoredMatrixView block = b.block_rows(blocks.first_column(k), columns).block_cols(blocks.first_row(i), rows);
  uint32_t* panels = reinterpret_cast<uint32_t*>(packed) + pairs_before(blocks, i, k);
  float room[2][PackedBlocks::kBlockRows];
  for (int64_t p = 0; p < pairs; ++p) {
    const float* x = floats_of(block, 2 * p, room[0]);
    const float* y = 2 * p + 1 < columns ? floats_of(block, 2 * p + 1, room[1]) : nullptr;
    for (int64_t first = 0; first < rows; first += kBf16Panel) {
      uint32_t* out = panels + first * pairs + p * kBf16Panel;
      const int64_t some = least(kBf16Panel, rows - first);
      round_two_rows(x + first, y ? y + first : nullptr, some, out);
      for (int64_t r = some; r < kBf16Panel; ++r) out[r] = 0;
    }
  }
}

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

// round(first column, columns, room): A's rows in the columns of a block of B's, in `room` for rows * kMostPairs pairs.
template <typename Round>
void multiply_blocks(const PackedBlocks& blocks, const float* packed, int64_t first, int64_t last, MatrixView c,
                     bool adds, const Round& round) {
  const auto bytes = static_cast<size_t>(c.rows * kMostPairs) * sizeof(uint32_t);
  auto* room = static_cast<uint32_t*>(_mm_malloc(bytes, 64));
  for (int64_t k = 0; k < blocks.column_blocks(); ++k) {
    const int64_t columns = blocks.columns_of(k);
    const RoundedRows a = round(blocks.first_column(k), columns, room);
    for (int64_t i = first; i < last; ++i) {
      const MatrixView part = c.block_cols(blocks.first_row(i), blocks.rows_of(i));
      if (k == 0 && !adds) set_zero(part);
      add_block(a, reinterpret_cast<const uint32_t*>(packed) + pairs_before(blocks, i, k), pairs_of(columns), part);
    }
  }
  _mm_free(room);
}

void multiply_packed(ConstMatrixView a, const PackedBlocks& blocks, const float* packed, int64_t first, int64_t last,
                     MatrixView c, bool adds) {
  multiply_blocks(blocks, packed, first, last, c, adds, [&](int64_t column, int64_t columns, uint32_t* room) {
    for (int64_t r = 0; r < a.rows; ++r) round_row(a.row(r) + column, columns, room + r * kMostPairs);
    return RoundedRows{room, kMostPairs, 1};
  });
}

void multiply_packed_tn(ConstMatrixView a, const PackedBlocks& blocks, const float* packed, int64_t first, int64_t last,
                        MatrixView c) {
  multiply_blocks(blocks, packed, first, last, c, /*adds=*/true, [&](int64_t row, int64_t rows, uint32_t* room) {
    for (int64_t p = 0; p < pairs_of(rows); ++p)
      round_two_rows(a.row(row + 2 * p), 2 * p + 1 < rows ? a.row(row + 2 * p + 1) : nullptr, a.cols,
                     room + p * a.cols);
    return RoundedRows{room, 1, a.cols};
  });
}

constexpr Bf16Products kProducts = {pack, pack_transposed, multiply_packed, multiply_packed_tn};

}  // namespace

const Bf16Products& bf16_products_avx512() { return kProducts; }

}  // namespace thimble
