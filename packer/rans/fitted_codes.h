// fitted_codes.h: the codes of a matrix with all that the weight coder chooses for them before it writes anything:
// scales, tables, blocks. In: codes, and whether a trellis runs down their columns. Out: each block's codes, and the
// table of each.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdlib>
#include <limits>
#include <span>
#include <vector>

#include "packer/rans/scale_fit.h"
#include "packer/rans/trellis_levels.h"
#include "packer/rans/weight_blocks.h"

namespace thimble {

// With a trellis code -magnitude - 1 must not be the lowest of its type.
template <typename Code>
constexpr uint32_t largest_allowed(int trellis_bits) {
  return static_cast<uint32_t>(std::numeric_limits<Code>::max()) - (trellis_bits != 0 ? 1 : 0);
}

// Of each element of a block.
inline void fill_classes(const AxisScales& rows, const AxisScales& columns, const WeightBlock& block,
                         std::span<uint8_t> classes) {
  const uint64_t columns_of_matrix = columns.values.size();
  for (uint64_t i = 0; i < block.rows; ++i) {
    const uint64_t begin = block.begin + i * block.stride;
    uint64_t r = begin / columns_of_matrix, k = begin % columns_of_matrix;
    for (uint8_t& scale_class : classes.subspan(i * block.width, block.width)) {
      scale_class = static_cast<uint8_t>(class_of(rows.values[r], columns.values[k]));
      if (++k < columns_of_matrix) continue;
      k = 0;
      ++r;
    }
  }
}

template <typename Code>
class FittedCodes {
 public:
  // As encode_weights() takes them.
  FittedCodes(std::span<const Code> codes, uint64_t rows, uint64_t columns, int trellis_bits)
      : codes_(codes),
        lanes_log2_(BlockCut::lanes_log2_for(rows, columns, trellis_bits != 0)),
        cut_(rows, columns, trellis_bits != 0, lanes_log2_) {
    assert(rows > 0 && columns > 0 && codes.size() == rows * columns && Trellis::has_bits(trellis_bits));
    if (trellis_bits == 0) {
      for (Code code : codes) max_magnitude_ = std::max(max_magnitude_, code_magnitude(code, 0));
      fit_ = fit_scales(codes, rows, columns, max_magnitude_);
    } else {
      levels_ = trellis_levels(codes, rows, columns, trellis_bits);
      max_magnitude_ = levels_.largest_code;
      fit_ = fit_scales(levels_, rows, columns);
    }
    assert(max_magnitude_ <= largest_allowed<Code>(trellis_bits));
    tables_ = make_scale_tables(fit_.shape, max_magnitude_, trellis_bits == 0 ? 1 : 2);
  }

  uint32_t max_magnitude() const { return max_magnitude_; }
  const ScaleFit& fit() const { return fit_; }
  const ScaleTables& tables() const { return tables_; }
  int lanes_log2() const { return lanes_log2_; }
  const BlockCut& cut() const { return cut_; }

  // body(table_of, codes) for each block in turn: the table of each element, and its code.
  template <typename Body>
  void for_each_block(const Body& body) const {
    std::vector<uint8_t> table_of;
    std::vector<Code> gathered;
    for (uint64_t i = 0; i < cut_.blocks(); ++i) {
      const WeightBlock block = cut_.block(i / cut_.stripes(), i % cut_.stripes());
      table_of.resize(block.elements());
      fill_classes(fit_.rows, fit_.columns, block, table_of);
      if (!levels_.magnitudes.empty()) add_sets(block, table_of);
      body(std::span<const uint8_t>(table_of), elements_of(block, gathered));
    }
  }

 private:
  void add_sets(const WeightBlock& block, std::span<uint8_t> table_of) const {
    for (uint64_t i = 0; i < block.rows; ++i) {
      const uint16_t* level = &levels_.magnitudes[block.begin + i * block.stride];
      for (uint8_t& table : table_of.subspan(i * block.width, block.width))
        table = static_cast<uint8_t>(table + kScaleClasses * (*level++ & 1));
    }
  }

  std::span<const Code> elements_of(const WeightBlock& block, std::vector<Code>& gathered) const {
    if (block.width == block.stride) return codes_.subspan(block.begin, block.elements());
    gathered.clear();
    for (uint64_t i = 0; i < block.rows; ++i) {
      const std::span run = codes_.subspan(block.begin + i * block.stride, block.width);
      gathered.insert(gathered.end(), run.begin(), run.end());
    }
    return gathered;
  }

  std::span<const Code> codes_;  // (R, K)
  TrellisLevels levels_;         // none without a trellis
  uint32_t max_magnitude_ = 0;
  ScaleFit fit_;
  ScaleTables tables_;
  int lanes_log2_;
  BlockCut cut_;
};

}  // namespace thimble
