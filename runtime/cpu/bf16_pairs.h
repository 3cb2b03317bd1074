// bf16_pairs.h: float32 rounded to pairs of bf16 as processors multiply them, and a packed factor of such pairs. Only
// for files compiled for AVX512-BF16, which keep a copy each: everything is in an unnamed namespace.
#pragma once

#include <immintrin.h>

#include "runtime/cpu/bf16_products.h"

namespace thimble {
namespace {

constexpr int64_t kVector = 16;  // float32 in a register
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

// Rows [row, row + rows) of `a`, the elements of a column in pairs: pair p of column c at pairs[p * stride + c].
void round_columns(ConstMatrixView a, int64_t row, int64_t rows, uint32_t* pairs, int64_t stride) {
  for (int64_t p = 0; p < pairs_of(rows); ++p)
    round_two_rows(a.row(row + 2 * p), 2 * p + 1 < rows ? a.row(row + 2 * p + 1) : nullptr, a.cols, pairs + p * stride);
}

// Room for pairs, to be freed by _mm_free().
uint32_t* take_pairs(int64_t count) {
  return static_cast<uint32_t*>(_mm_malloc(static_cast<size_t>(count) * sizeof(uint32_t), 64));
}

}  // namespace
}  // namespace thimble
