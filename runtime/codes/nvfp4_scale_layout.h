// nvfp4_scale_layout.h: where CUTLASS and cuBLASLt expect the block scales of an operand, and back.
// In: scales (MN, B) row-major, MN = rows of the operand, B = blocks of 16 along K.
// Out: the same in atoms of 128 rows x 4 blocks, 512 bytes each, padded with 0.
//
//   atom (mn / 128, sf / 4), row-major; within it     (mn % 32) * 16 + (mn / 32 % 4) * 4 + sf % 4
//
//            sf 0  1  2  3
//   mn   0      0  1  2  3         mn  32      4  5  6  7         mn  96     12 13 14 15
//        1     16 17 18 19             33     20 21 22 23   ...       97     28 29 30 31
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/tensor/host_device.h"

namespace thimble {

constexpr int64_t kScaleAtomRows = 128, kScaleAtomBlocks = 4;
constexpr int64_t kScaleAtomBytes = kScaleAtomRows * kScaleAtomBlocks;

// Bytes to allocate: whole atoms.
THIMBLE_HOST_DEVICE constexpr int64_t scale_layout_bytes(int64_t rows, int64_t blocks) {
  return round_up(rows, kScaleAtomRows) * round_up(blocks, kScaleAtomBlocks);
}

// Where the scale of row `mn` and block `sf` lies, of an operand of `blocks` blocks per row.
THIMBLE_HOST_DEVICE constexpr int64_t scale_layout_index(int64_t mn, int64_t sf, int64_t blocks) {
  const int64_t atoms_per_row = round_up(blocks, kScaleAtomBlocks) / kScaleAtomBlocks;
  const int64_t atom = mn / kScaleAtomRows * atoms_per_row + sf / kScaleAtomBlocks;
  return atom * kScaleAtomBytes + mn % 32 * 16 + mn / 32 % 4 * 4 + sf % 4;
}

// (rows, blocks) row-major to the layout, and its inverse.
std::vector<uint8_t> arrange_scales(std::span<const uint8_t> scales, int64_t rows, int64_t blocks);
std::vector<uint8_t> restore_scales(std::span<const uint8_t> arranged, int64_t rows, int64_t blocks);

// Bytes of the layout of (rows, columns) that do not hold the scale they should, padding that is not 0, and scales that
// do not come back: 0 when all is well. Places are found by walking the atoms' bytes, not by scale_layout_index().
int64_t scale_layout_errors(int64_t rows, int64_t columns);

// The sum of the same over rows 20, 40, ..., max_rows and columns 16, 32, ..., max_columns.
struct ScaleLayoutCheck {
  int64_t shapes = 0, errors = 0;
  int64_t first_rows = 0, first_columns = 0;  // the first shape with an error
};
ScaleLayoutCheck check_scale_layouts(int64_t max_rows = 260, int64_t max_columns = 1040);

}  // namespace thimble
