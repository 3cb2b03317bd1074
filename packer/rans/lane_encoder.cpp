// lane_encoder.cpp: encoding runs backwards, so that decoding runs forwards.
#include "packer/rans/lane_encoder.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <memory>

namespace thimble {
namespace {

static_assert(std::endian::native == std::endian::little, "words lie in files as in memory");

// 2^64 / slots rounded up; of 1 slot as much as there is room for.
std::array<uint64_t, kSlots + 1> make_reciprocals() {
  std::array<uint64_t, kSlots + 1> reciprocals{};
  reciprocals[1] = UINT64_MAX;
  for (uint64_t slots = 2; slots <= kSlots; ++slots) reciprocals[slots] = UINT64_MAX / slots + 1;
  return reciprocals;
}

}  // namespace

SymbolTables::SymbolTables(ScaleTables tables, ClassRange classes)
    : tables_(std::move(tables)), odd_escape_(tables_.size() > kScaleClasses ? kLowest + kCodes - 1 : kLowest) {
  static const std::array<uint64_t, kSlots + 1> reciprocals = make_reciprocals();
  const size_t sets = tables_.size() / kScaleClasses;
  symbols_.reserve(sets * (classes.last - classes.first + 1) * kCodes);
  for (size_t set = 0; set < sets; ++set)
    for (uint32_t c = classes.first; c <= classes.last; ++c) {
      const ScaleTable& table = tables_[c + kScaleClasses * set];
      first_of_[c + kScaleClasses * set] = symbols_.size();
      for (int32_t code = kLowest; code < kLowest + kCodes; ++code) {
        const uint32_t symbol = std::min(table.symbol_of(code), table.symbols() - 1), slots = table.slots_of(symbol);
        symbols_.push_back({reciprocals[slots], static_cast<uint16_t>(slots),
                            static_cast<uint16_t>(table.starts[symbol] + (slots == 1 ? kSlots - 1 : 0)),
                            symbol >= table.first_escape()});
      }
    }
}

ByteVector encode_block(const SymbolTables& tables, std::span<const uint8_t> table_of, std::span<const int32_t> codes,
                        uint32_t lanes, std::vector<Escape>& escapes) {
  assert(std::has_single_bit(lanes) && lanes <= kMaxLanes);
  std::array<uint32_t, kMaxLanes> states{};
  states.fill(kLaneStart);
  const auto first_escape = static_cast<ptrdiff_t>(escapes.size());
  // Filled from the end; one more, for what is written and not kept.
  const auto words = std::make_unique_for_overwrite<uint16_t[]>(codes.size() + 1);
  uint16_t* const end = words.get() + codes.size() + 1;
  uint16_t* word = end;
  for (size_t e = codes.size(); e-- > 0;) {
    const SymbolTables::Symbol& symbol = tables.symbol(table_of[e], codes[e]);
    uint32_t state = states[e & (lanes - 1)];
    // No branch that follows the codes, which nobody could foretell.
    word[-1] = static_cast<uint16_t>(state);
    const uint32_t writes = (state >> (32 - kSlotBits)) >= symbol.slots ? 1 : 0;
    word -= writes;
    states[e & (lanes - 1)] = symbol.after(state >> (writes * kWordBits));
    if (symbol.is_escape) [[unlikely]]
      escapes.push_back(escape_of(tables[table_of[e]], codes[e]));
  }
  std::reverse(escapes.begin() + first_escape, escapes.end());
  const std::span written(word, end);
  ByteVector stored;
  stored.reserve(lanes * sizeof(uint32_t) + written.size_bytes());
  for (uint32_t state : std::span(states).first(lanes)) append_little_endian(stored, state);
  append_bytes(stored, std::as_bytes(written));
  return stored;
}

}  // namespace thimble
