// lane_rans.h: range asymmetric numeral systems (rANS, arXiv 1311.2540) with static tables over interleaved lanes.
// A block's elements go to its lanes in turn: element e belongs to lane e % lanes, at step e / lanes. A lane has a
// 32-bit state in [2^16, 2^32) and reads 16-bit words from a stream that all lanes of the block share, at most one per
// element, in the order of elements. So 32 lanes decode in step on one warp, and lanes of many blocks in numpy.
// With a trellis an element's table is known when the one `width` places before it, above it in its column, has been
// decoded: there must be no more lanes than columns.
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "packer/rans/scale_tables.h"
#include "packer/rans/weight_escapes.h"
#include "runtime/base/byte_cursor.h"
#include "runtime/codes/trellis.h"

namespace thimble {

constexpr uint32_t kMaxLanes = 32;
constexpr int kWordBits = 16;
constexpr uint32_t kLaneStart = uint32_t{1} << 16;  // state before the first encoded element, after the last decoded

// Classes from the first to the last.
struct ClassRange {
  uint32_t first = 0, last = kScaleClasses - 1;
};

// Tables as a decoder reads them: what every slot stands for, in one word. Those of some classes, of each set.
class SlotTables {
 public:
  static constexpr uint64_t kTableBytes = kSlots * sizeof(uint32_t);
  // Of a code beyond its table's reach. No code within has this value.
  static constexpr int32_t kEscape = -128;

  SlotTables(ScaleTables tables, ClassRange classes);

  struct View {
    const uint32_t* slots;
    size_t set_stride;
    uint32_t first_class;
    uint32_t entry(uint32_t scale_class, uint32_t set, uint32_t slot) const {
      return slots[set * set_stride + (scale_class - first_class) * kSlots + slot];
    }
  };
  View view() const { return {slots_.data(), set_stride_, first_class_}; }

  static constexpr int32_t code_of(uint32_t entry) { return static_cast<int32_t>(entry) >> 24; }
  // The state after the slot's symbol has left `state`.
  static constexpr uint32_t rest_of(uint32_t entry, uint32_t state) {
    return ((entry >> kSlotBits & (kSlots - 1)) + 1) * (state >> kSlotBits) + (entry & (kSlots - 1));
  }
  const ScaleTable& table(uint32_t scale_class, uint32_t set) const {
    return tables_[scale_class + kScaleClasses * set];
  }

 private:
  ScaleTables tables_;
  uint32_t first_class_;
  size_t set_stride_;
  std::vector<uint32_t>
      slots_;  // code, slots of its symbol less 1, slots of the symbol before this one: 8, 12, 12 bits
};

// Where the elements of a block belong.
struct BlockContext {
  std::span<const uint8_t> classes;  // (elements)
  Trellis trellis{0};
  uint64_t width = 1;  // columns of the block: element e is in column e % width, whose trellis starts with the block
};

// The inverse of encode_block() (lane_encoder.h); codes.size() = context.classes.size(), all of classes that the tables
// have. Where an escape was coded, the code is the next of `escapes`. Throws FormatError(where, ...) unless every word
// is used and every lane ends in the state that encoding starts from.
void decode_block(const SlotTables& tables, const BlockContext& context, Bytes stored, uint32_t lanes,
                  std::span<int32_t> codes, EscapeReader& escapes, const std::string& where);

}  // namespace thimble
