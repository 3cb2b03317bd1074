// nvfp4_scale_layout.cpp: see nvfp4_scale_layout.h.
#include "runtime/codes/nvfp4_scale_layout.h"

#include <cassert>

#include "runtime/codes/nvfp4_matrix.h"

namespace thimble {
namespace {

// Byte `plane` of the number of the scale at (mn, sf), counted from 1; 0 outside the operand.
uint8_t label(int64_t mn, int64_t sf, int64_t rows, int64_t blocks, int plane) {
  if (mn >= rows || sf >= blocks) return 0;
  return static_cast<uint8_t>((mn * blocks + sf + 1) >> (8 * plane));
}

// Walks the bytes in the order in which they lie: rows 0 to 31 of an atom, for each its four quarters of 32 rows, for
// each 4 blocks.
int64_t misplaced(const std::vector<uint8_t>& arranged, int64_t rows, int64_t blocks, int plane) {
  int64_t errors = 0;
  size_t at = 0;
  for (int64_t atom_row = 0; atom_row < rows; atom_row += 128)
    for (int64_t atom_block = 0; atom_block < blocks; atom_block += 4)
      for (int64_t lane = 0; lane < 32; ++lane)
        for (int64_t quarter = 0; quarter < 4; ++quarter)
          for (int64_t sf = 0; sf < 4; ++sf, ++at)
            errors += at >= arranged.size() ||
                      arranged[at] != label(atom_row + 32 * quarter + lane, atom_block + sf, rows, blocks, plane);
  return errors + (at != arranged.size());
}

}  // namespace

std::vector<uint8_t> arrange_scales(std::span<const uint8_t> scales, int64_t rows, int64_t blocks) {
  assert(static_cast<int64_t>(scales.size()) == rows * blocks);
  std::vector<uint8_t> arranged(static_cast<size_t>(scale_layout_bytes(rows, blocks)));
  for (int64_t i = 0; i < rows * blocks; ++i)
    arranged[static_cast<size_t>(scale_layout_index(i / blocks, i % blocks, blocks))] = scales[static_cast<size_t>(i)];
  return arranged;
}

std::vector<uint8_t> restore_scales(std::span<const uint8_t> arranged, int64_t rows, int64_t blocks) {
  assert(static_cast<int64_t>(arranged.size()) == scale_layout_bytes(rows, blocks));
  std::vector<uint8_t> scales(static_cast<size_t>(rows * blocks));
  for (int64_t i = 0; i < rows * blocks; ++i)
    scales[static_cast<size_t>(i)] = arranged[static_cast<size_t>(scale_layout_index(i / blocks, i % blocks, blocks))];
  return scales;
}

int64_t scale_layout_errors(int64_t rows, int64_t columns) {
  const int64_t blocks = nvfp4_blocks(columns);
  int64_t errors = 0;
  // Scales have a byte each: three rounds tell up to 2^24 - 1 of them apart.
  for (int plane = 0; plane < 3; ++plane) {
    std::vector<uint8_t> scales;
    for (int64_t mn = 0; mn < rows; ++mn)
      for (int64_t sf = 0; sf < blocks; ++sf) scales.push_back(label(mn, sf, rows, blocks, plane));
    const std::vector<uint8_t> arranged = arrange_scales(scales, rows, blocks);
    errors += misplaced(arranged, rows, blocks, plane);
    const std::vector<uint8_t> restored = restore_scales(arranged, rows, blocks);
    for (size_t i = 0; i < scales.size(); ++i) errors += restored[i] != scales[i];
  }
  return errors;
}

ScaleLayoutCheck check_scale_layouts(int64_t max_rows, int64_t max_columns) {
  ScaleLayoutCheck check;
  for (int64_t rows = 20; rows <= max_rows; rows += 20)
    for (int64_t columns = kNvfp4Block; columns <= max_columns; columns += kNvfp4Block) {
      const int64_t errors = scale_layout_errors(rows, columns);
      if (errors > 0 && check.errors == 0) check.first_rows = rows, check.first_columns = columns;
      check.errors += errors;
      ++check.shapes;
    }
  return check;
}

}  // namespace thimble
