// layout_choice.h: which layouts of a section are worth really compressing. Compressing every one with Brotli at
// quality 11 costs seconds per megabyte; the direction of a code matrix is decided by a statistic instead.
#pragma once

#include <vector>

#include "packer/layout/section_layout.h"

namespace thimble {

// One layout or a few, the best for `codec` (nearly always) among them; none when the codec does not take this shape.
// A function of its arguments alone.
std::vector<LayoutId> layout_candidates(CodecId codec, const ContentShape& shape, Bytes content);

// Ideal length in bits of `codes` (rows, columns) read row by row (or column by column) under histograms chosen by the
// running mean of |code|: what contexts and block types of a byte compressor can gain in that direction.
double adaptive_code_bits(Bytes codes, uint64_t rows, uint64_t columns, bool by_columns);

}  // namespace thimble
