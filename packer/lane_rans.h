// lane_rans.h: range asymmetric numeral systems (rANS, arXiv 1311.2540) with static tables over interleaved lanes.
// A block's elements go to its lanes in turn: element e belongs to lane e % lanes, at step e / lanes. A lane has a
// 32-bit state in [2^16, 2^32) and reads 16-bit words from a stream that all lanes of the block share, at most one per
// element, in the order of elements. So 32 lanes decode in step on one warp, and lanes of many blocks in numpy.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "packer/scale_tables.h"
#include "runtime/byte_cursor.h"

namespace thimble {

constexpr uint32_t kMaxLanes = 32;
constexpr uint32_t kLaneStart = uint32_t{1} << 16;  // state before the first encoded element, after the last decoded

// One block: `lanes` states (u32), then words (u16), in the order in which the decoder reads them.
struct RansBlock {
  std::vector<uint32_t> states;  // (lanes)
  std::vector<uint16_t> words;
};

// What a decoder needs besides the tables: for a slot, a symbol at or little before its own.
class SlotIndex {
 public:
  explicit SlotIndex(const ScaleTables& tables);
  uint32_t symbol_at(const ScaleTable& table, uint32_t scale_class, uint32_t slot) const {
    uint32_t symbol = first_[scale_class][slot >> kBucketBits];
    while (table.starts[symbol + 1] <= slot) ++symbol;
    return symbol;
  }

 private:
  static constexpr int kBucketBits = 6;
  static constexpr size_t kBuckets = kSlots >> kBucketBits;
  std::array<std::array<uint8_t, kBuckets>, kScaleClasses> first_{};
};

// classes and codes: (elements). Codes beyond a table's reach are coded as its escape.
template <typename Code>
RansBlock encode_block(const ScaleTables& tables, std::span<const uint8_t> classes, std::span<const Code> codes,
                       uint32_t lanes);

// The inverse, from `stored` (states and words as in the file); codes.size() = classes.size(). Where an escape was
// coded, codes[e] is left as 0 and e appended to `escapes`. Throws FormatError(where, ...) unless every word is used
// and every lane ends in the state that encoding starts from.
template <typename Code>
void decode_block(const ScaleTables& tables, const SlotIndex& index, std::span<const uint8_t> classes, Bytes stored,
                  uint32_t lanes, std::span<Code> codes, std::vector<uint64_t>& escapes, const std::string& where);

}  // namespace thimble
