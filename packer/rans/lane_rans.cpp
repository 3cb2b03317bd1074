// lane_rans.cpp: the decoder's loops.
#include "packer/rans/lane_rans.h"

#include <algorithm>

#include "runtime/base/format_error.h"

namespace thimble {
namespace {

// So many elements without a trellis are looked at together: are there words for all of them?
constexpr size_t kRun = 4096;

struct Decoding {
  const SlotTables& tables;
  std::span<uint32_t> lanes;  // their states; a power of two of them
  Bytes words;
  size_t next = 0;  // byte of the words
  EscapeReader& escapes;
  const std::string& where;
};

// Elements of a run, the first of which is number `first` of the block. `columns`: the states of the trellis, one for
// each element; no trellis: none. kIsSure: there are words for all elements, so that none has to ask, and no branch
// follows from what it reads, which nobody could foretell.
template <bool kIsSure, bool kHasTrellis>
void decode_run(Decoding& d, Trellis trellis, std::span<uint8_t> columns, size_t first,
                std::span<const uint8_t> classes, std::span<int32_t> codes) {
  // Bytes are stored below, which a compiler must take for anything's: only what is no member stays in registers.
  const SlotTables::View tables = d.tables.view();
  uint32_t* const lanes = d.lanes.data();
  const size_t last_lane = d.lanes.size() - 1, count = codes.size();
  const std::byte* word = d.words.data() + d.next;
  for (size_t i = 0; i < count; ++i) {
    uint32_t set = 0;
    if constexpr (kHasTrellis) set = static_cast<uint32_t>(Trellis::set(columns[i]));
    uint32_t& lane = lanes[(first + i) & last_lane];
    const uint32_t slot = lane & (kSlots - 1), entry = tables.entry(classes[i], set, slot);
    uint32_t state = SlotTables::rest_of(entry, lane);
    const uint32_t reads = state < kLaneStart ? 1 : 0;
    if constexpr (kIsSure) {
      const uint32_t read = load_little_endian<uint16_t>(word) & (0 - reads);
      state = state << (reads * kWordBits) | read;
      word += reads * sizeof(uint16_t);
    } else if (reads != 0) {
      if (d.words.data() + d.words.size() - word < static_cast<ptrdiff_t>(sizeof(uint16_t)))
        throw_format_error(d.where, "a block's words end too early");
      state = state << kWordBits | load_little_endian<uint16_t>(word);
      word += sizeof(uint16_t);
    }
    lane = state;
    int32_t code = SlotTables::code_of(entry);
    if (code == SlotTables::kEscape) [[unlikely]] {
      const ScaleTable& table = d.tables.table(classes[i], set);
      code = d.escapes.read_code(table, table.symbol_at(slot));
    }
    codes[i] = code;
    if constexpr (kHasTrellis) columns[i] = static_cast<uint8_t>(trellis.next(columns[i], code));
  }
  d.next = static_cast<size_t>(word - d.words.data());
}

template <bool kHasTrellis>
void decode_elements(Decoding& d, const BlockContext& context, std::span<int32_t> codes) {
  const size_t run = kHasTrellis ? context.width : kRun;
  std::vector<uint8_t> columns(kHasTrellis ? context.width : 0);
  for (size_t first = 0; first < codes.size(); first += run) {
    const size_t count = std::min(run, codes.size() - first);
    const auto decode = d.words.size() - d.next >= count * sizeof(uint16_t) + sizeof(uint16_t)
                            ? decode_run<true, kHasTrellis>
                            : decode_run<false, kHasTrellis>;
    decode(d, context.trellis, columns, first, context.classes.subspan(first, count), codes.subspan(first, count));
  }
  if (d.next != d.words.size()) throw_format_error(d.where, "a block has words left over");
}

}  // namespace

SlotTables::SlotTables(ScaleTables tables, ClassRange classes)
    : tables_(std::move(tables)),
      first_class_(classes.first),
      set_stride_(size_t{classes.last - classes.first + 1} * kSlots),
      slots_(tables_.size() / kScaleClasses * set_stride_) {
  auto next = slots_.begin();
  for (size_t set = 0; set < tables_.size() / kScaleClasses; ++set)
    for (uint32_t c = classes.first; c <= classes.last; ++c) {
      const ScaleTable& table = this->table(c, static_cast<uint32_t>(set));
      for (uint32_t symbol = 0; symbol < table.symbols(); ++symbol) {
        const int32_t code = symbol < table.first_escape() ? table.code_of(symbol) : kEscape;
        const uint32_t slots = table.slots_of(symbol);
        const uint32_t entry = static_cast<uint32_t>(code) << 24 | (slots - 1) << kSlotBits;
        for (uint32_t before = 0; before < slots; ++before) *next++ = entry | before;
      }
    }
}

void decode_block(const SlotTables& tables, const BlockContext& context, Bytes stored, uint32_t lanes,
                  std::span<int32_t> codes, EscapeReader& escapes, const std::string& where) {
  ByteCursor cursor(stored, where);
  std::array<uint32_t, kMaxLanes> all_states{};
  const std::span states = std::span(all_states).first(lanes);
  for (uint32_t lane = 0; lane < lanes; ++lane) {
    states[lane] = cursor.read<uint32_t>("a lane's state");
    if (states[lane] < kLaneStart)
      throw_format_error(where, "lane {} starts at {}, at least {}", lane, states[lane], kLaneStart);
  }
  Decoding decoding{tables, states, cursor.take(cursor.remaining(), "words"), 0, escapes, where};
  if (context.trellis.bits() == 0)
    decode_elements<false>(decoding, context, codes);
  else
    decode_elements<true>(decoding, context, codes);
  for (uint32_t lane = 0; lane < lanes; ++lane)
    if (states[lane] != kLaneStart) throw_format_error(where, "lane {} does not end where encoding starts", lane);
}

}  // namespace thimble
