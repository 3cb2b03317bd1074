// weight_escapes.cpp: from codes to signed distances, to bits, and back.
#include "packer/rans/weight_escapes.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "runtime/base/format_error.h"

namespace thimble {
namespace {

// The smallest magnitude beyond the reach of a code with this sign that the symbol stands for. Where two symbols tell
// even codes from odd ones, magnitudes of the same symbol and sign are two apart.
uint32_t first_magnitude(const ScaleTable& table, uint32_t symbol, bool negative) {
  const uint32_t next = table.reach + 1;
  if (table.escapes == 1) return next;
  const uint32_t parity_of_code = symbol - table.first_escape();
  const uint32_t parity = parity_of_code ^ (negative ? table.set : 0);  // the negative code is -magnitude - set
  return next + ((next ^ parity) & 1);
}

class BitWriter {
 public:
  void put(uint64_t value, int count) {
    for (int i = 0; i < count; ++i, ++bit_count_) {
      if (bit_count_ % 8 == 0) bytes_.push_back(std::byte{0});
      bytes_.back() |= static_cast<std::byte>(((value >> i) & 1) << (bit_count_ % 8));
    }
  }
  ByteVector take() { return std::move(bytes_); }

 private:
  ByteVector bytes_;
  uint64_t bit_count_ = 0;
};

}  // namespace

Escape escape_of(const ScaleTable& table, int64_t code) {
  const bool negative = code < 0;
  const uint32_t magnitude = code_magnitude(code, table.set);
  return {(magnitude - first_magnitude(table, table.symbol_of(code), negative)) / table.escapes, negative};
}

uint64_t escape_length_bits(uint32_t distance, int order) {
  const auto bits = static_cast<int>(std::bit_width(uint64_t{distance} + (uint64_t{1} << order)));
  return static_cast<uint64_t>(2 * bits - order);
}

int cheapest_escape_order(std::span<const Escape> escapes) {
  int best = 0;
  uint64_t best_bits = std::numeric_limits<uint64_t>::max();
  for (int order = 0; order <= kMaxEscapeOrder; ++order) {
    uint64_t bits = 0;
    for (const Escape& escape : escapes) bits += escape_length_bits(escape.distance, order);
    if (bits >= best_bits) continue;
    best_bits = bits;
    best = order;
  }
  return best;
}

ByteVector write_escapes(std::span<const Escape> escapes, int order) {
  BitWriter writer;
  for (const Escape& escape : escapes) {
    const uint64_t u = escape.distance + (uint64_t{1} << order);
    const int low_bits = static_cast<int>(std::bit_width(u)) - 1;
    writer.put(0, low_bits - order);
    writer.put(1, 1);
    writer.put(u & ((uint64_t{1} << low_bits) - 1), low_bits);
    writer.put(escape.negative ? 1 : 0, 1);
  }
  return writer.take();
}

Escape EscapeReader::read(uint32_t largest) {
  int low_bits = order_;
  while (bit() == 0)
    if (++low_bits > 32) throw_format_error(where_, "an escape of more than 32 bits");
  uint64_t u = uint64_t{1} << low_bits;
  for (int i = 0; i < low_bits; ++i) u |= uint64_t{bit()} << i;
  const uint64_t distance = u - (uint64_t{1} << order_);
  if (distance > largest)
    throw_format_error(where_, "an escape lies {} beyond its table, at most {} allowed", distance, largest);
  return {static_cast<uint32_t>(distance), bit() == 1};
}

int32_t EscapeReader::read_code(const ScaleTable& table, uint32_t symbol) {
  const Escape escape = read((max_magnitude_ - table.reach - 1) / table.escapes);
  const int64_t magnitude = int64_t{escape.distance} * table.escapes + first_magnitude(table, symbol, escape.negative);
  if (magnitude > max_magnitude_)
    throw_format_error(where_, "an escape of magnitude {}, at most {} allowed", magnitude, max_magnitude_);
  return static_cast<int32_t>(escape.negative ? -magnitude - table.set : magnitude);
}

void EscapeReader::finish() {
  while (next_bit_ % 8 != 0)
    if (bit() != 0) throw_format_error(where_, "unused bits after the last escape are not zero");
  if (next_bit_ != 8 * uint64_t{bytes_.size()})
    throw_format_error(where_, "{} B after the last escape", bytes_.size() - next_bit_ / 8);
}

uint32_t EscapeReader::bit() {
  if (next_bit_ / 8 >= bytes_.size()) throw_format_error(where_, "the escapes end too early");
  const uint32_t value = (std::to_integer<uint32_t>(bytes_[next_bit_ / 8]) >> (next_bit_ % 8)) & 1;
  ++next_bit_;
  return value;
}

}  // namespace thimble
