// weight_blocks.h: which codes of a matrix make a block of the weight coder.
// A block is `rows` runs of `width` codes each, the runs `stride` apart in the row-major matrix; its elements are
// numbered run after run. Without a trellis it is a single run, of kBlockSteps codes for each lane. With one, a block
// begins where the columns' trellises begin again and has whole rows of a stripe of columns, so that it can be decoded
// without the others, and no more columns than a GPU can keep states of:
//
//          columns 0..W-1   W..2W-1
//   rows 0..511    block 0   block 1      band 0: one segment of the trellis
//     512..1023    block 2   block 3      band 1
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "packer/rans/lane_rans.h"
#include "runtime/codes/trellis.h"

namespace thimble {

// A lane's steps in a full block. Longer blocks cost fewer bytes (a lane costs 2), shorter ones decode more in
// parallel.
constexpr uint64_t kBlockSteps = uint64_t{1} << 14;
constexpr uint64_t kStripeColumns = kBlockSteps * kMaxLanes / static_cast<uint64_t>(kTrellisRows);  // 1024

struct WeightBlock {
  uint64_t begin = 0;  // of the first run, in the matrix
  uint64_t rows = 0, width = 0, stride = 0;
  uint64_t elements() const { return rows * width; }
};

// R = rows, K = columns, neither 0; their product fits in 64 bits.
class BlockCut {
 public:
  BlockCut(uint64_t rows, uint64_t columns, bool trellis, int lanes_log2)
      : rows_(rows), columns_(columns), trellis_(trellis) {
    const uint64_t all = rows * columns;
    stripes_ = trellis ? divide_up(columns, kStripeColumns) : 1;
    band_ = std::min(all, trellis ? std::min<uint64_t>(rows, kTrellisRows) * columns : kBlockSteps << lanes_log2);
    bands_ = divide_up(all, band_);
  }

  // As few lanes as keep within kBlockSteps, so that small matrices pay for few.
  static int lanes_log2_for(uint64_t rows, uint64_t columns, bool trellis) {
    const BlockCut widest(rows, columns, trellis, std::bit_width(kMaxLanes) - 1);
    const uint64_t wanted = divide_up(widest.block(0, widest.stripes_ - 1).elements(), kBlockSteps);
    return std::countr_zero(std::min<uint64_t>(std::bit_ceil(wanted), kMaxLanes));
  }

  uint64_t blocks() const { return bands_ * stripes_; }
  uint64_t bands() const { return bands_; }
  uint64_t stripes() const { return stripes_; }  // blocks of each band
  // Codes of a band, which lie together in the matrix.
  uint64_t band_begin(uint64_t band) const { return band * band_; }
  uint64_t band_elements(uint64_t band) const { return std::min(band_, rows_ * columns_ - band_begin(band)); }
  // A step of all lanes must not hold an element and the one below it, whose set depends on it.
  uint64_t most_lanes() const { return trellis_ ? std::min<uint64_t>(columns_ / stripes_, kMaxLanes) : kMaxLanes; }

  WeightBlock block(uint64_t band, uint64_t stripe) const {
    const uint64_t begin = band_begin(band), count = band_elements(band);
    if (!trellis_) return {begin, 1, count, count};
    const uint64_t first = stripe * columns_ / stripes_, last = (stripe + 1) * columns_ / stripes_;
    return {begin + first, count / columns_, last - first, columns_};
  }

 private:
  static uint64_t divide_up(uint64_t a, uint64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

  uint64_t rows_, columns_;
  bool trellis_;
  uint64_t stripes_, band_, bands_;
};

}  // namespace thimble
