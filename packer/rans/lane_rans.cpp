// lane_rans.cpp: the two loops. Encoding runs backwards, so that decoding runs forwards.
#include "packer/rans/lane_rans.h"

#include <algorithm>

#include "runtime/base/format_error.h"

namespace thimble {
namespace {

constexpr int kWordBits = 16;

// Which table codes the next element, when its class is known: without a trellis, that of its class.
struct ClassAlone {
  uint32_t table_of(uint32_t scale_class) const { return scale_class; }
  void advance(uint32_t) {}
};

// With one, that of its class and set. The states of all columns follow the codes down the rows.
class ClassAndSet {
 public:
  ClassAndSet(const Trellis& trellis, uint64_t width) : trellis_(trellis), states_(width) {}
  uint32_t table_of(uint32_t scale_class) const {
    return scale_class + static_cast<uint32_t>(kScaleClasses * Trellis::set(states_[column_]));
  }
  // To the next element; `parity` of the code of this one.
  void advance(uint32_t parity) {
    states_[column_] = static_cast<uint8_t>(trellis_.next(states_[column_], static_cast<int32_t>(parity)));
    if (++column_ == states_.size()) column_ = 0;
  }

 private:
  Trellis trellis_;
  std::vector<uint8_t> states_;
  size_t column_ = 0;
};

template <typename Order>
void decode_elements(const ScaleTables& tables, const SlotIndex& index, std::span<const uint8_t> classes, Order order,
                     std::span<uint32_t> states, Bytes words, std::span<int32_t> codes, EscapeReader& escapes,
                     const std::string& where) {
  const size_t last_lane = states.size() - 1;  // of a power of two
  size_t next = 0;
  for (size_t e = 0; e < codes.size(); ++e) {
    const uint32_t t = order.table_of(classes[e]);
    const ScaleTable& table = tables[t];
    uint32_t& state = states[e & last_lane];
    const uint32_t slot = state & (kSlots - 1);
    const uint32_t symbol = index.symbol_at(tables, t, slot);
    state = table.slots_of(symbol) * (state >> kSlotBits) + slot - table.starts[symbol];
    if (state < kLaneStart) {
      if (words.size() - next < sizeof(uint16_t)) throw_format_error(where, "a block's words end too early");
      const auto low = std::to_integer<uint32_t>(words[next]), high = std::to_integer<uint32_t>(words[next + 1]);
      state = state << kWordBits | high << 8 | low;
      next += sizeof(uint16_t);
    }
    if (symbol >= table.first_escape()) {
      codes[e] = escapes.read_code(table, symbol);
    } else {
      codes[e] = table.code_of(symbol);
    }
    order.advance(static_cast<uint32_t>(codes[e]));
  }
  if (next != words.size()) throw_format_error(where, "a block has words left over");
}

}  // namespace

SlotIndex::SlotIndex(const ScaleTables& tables) : first_(tables.size()) {
  for (size_t c = 0; c < tables.size(); ++c) {
    uint32_t symbol = 0;
    for (uint32_t bucket = 0; bucket < first_[c].size(); ++bucket) {
      while (tables[c].starts[symbol + 1] <= bucket << kBucketBits) ++symbol;
      first_[c][bucket] = static_cast<uint8_t>(symbol);
    }
  }
}

ByteVector encode_block(const ScaleTables& tables, std::span<const uint8_t> table_of, std::span<const int32_t> codes,
                        uint32_t lanes) {
  std::vector<uint32_t> states(lanes, kLaneStart);
  std::vector<uint16_t> words;  // from the last to the first
  for (size_t e = codes.size(); e-- > 0;) {
    const ScaleTable& table = tables[table_of[e]];
    const uint32_t symbol = table.symbol_of(codes[e]);
    const uint32_t slots = table.slots_of(symbol);
    uint32_t& state = states[e % lanes];
    if (state >= uint64_t{slots} << (32 - kSlotBits)) {
      words.push_back(static_cast<uint16_t>(state));
      state >>= kWordBits;
    }
    state = ((state / slots) << kSlotBits) + state % slots + table.starts[symbol];
  }
  ByteVector stored;
  stored.reserve(states.size() * sizeof(uint32_t) + words.size() * sizeof(uint16_t));
  for (uint32_t state : states) append_little_endian(stored, state);
  std::ranges::reverse(words);
  for (uint16_t word : words) append_little_endian(stored, word);
  return stored;
}

void decode_block(const ScaleTables& tables, const SlotIndex& index, const BlockContext& context, Bytes stored,
                  uint32_t lanes, std::span<int32_t> codes, EscapeReader& escapes, const std::string& where) {
  ByteCursor cursor(stored, where);
  std::array<uint32_t, kMaxLanes> all_states{};
  const std::span states = std::span(all_states).first(lanes);
  for (uint32_t lane = 0; lane < lanes; ++lane) {
    states[lane] = cursor.read<uint32_t>("a lane's state");
    if (states[lane] < kLaneStart)
      throw_format_error(where, "lane {} starts at {}, at least {}", lane, states[lane], kLaneStart);
  }
  const Bytes words = cursor.take(cursor.remaining(), "words");
  if (context.trellis.bits() == 0)
    decode_elements(tables, index, context.classes, ClassAlone{}, states, words, codes, escapes, where);
  else
    decode_elements(tables, index, context.classes, ClassAndSet(context.trellis, context.width), states, words, codes,
                    escapes, where);
  for (uint32_t lane = 0; lane < lanes; ++lane)
    if (states[lane] != kLaneStart) throw_format_error(where, "lane {} does not end where encoding starts", lane);
}

}  // namespace thimble
