// weight_escapes.cpp: from codes to signed distances and back.
#include "packer/rans/weight_escapes.h"

#include <limits>

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

}  // namespace

Escape escape_of(const ScaleTable& table, int64_t code) {
  const bool negative = code < 0;
  const uint32_t magnitude = code_magnitude(code, static_cast<int>(table.set));
  return {(magnitude - first_magnitude(table, table.symbol_of(code), negative)) / table.escapes, negative};
}

int64_t read_escaped(EscapeReader& reader, const ScaleTable& table, uint32_t symbol, uint32_t max_magnitude,
                     const std::string& where) {
  const Escape escape = reader.read((max_magnitude - table.reach - 1) / table.escapes);
  const int64_t magnitude = int64_t{escape.distance} * table.escapes + first_magnitude(table, symbol, escape.negative);
  if (magnitude > max_magnitude)
    throw FormatError(where, "an escape of magnitude " + std::to_string(magnitude) + ", at most " +
                                 std::to_string(max_magnitude) + " allowed");
  return escape.negative ? -magnitude - table.set : magnitude;
}

uint64_t EscapeList::length_bits(int order) const {
  uint64_t bits = 0;
  for (const Escape& escape : escapes_) bits += escape_length_bits(escape.distance, order);
  return bits;
}

int EscapeList::cheapest_order() const {
  int best = 0;
  uint64_t best_bits = std::numeric_limits<uint64_t>::max();
  for (int order = 0; order <= kMaxEscapeOrder; ++order) {
    const uint64_t bits = length_bits(order);
    if (bits >= best_bits) continue;
    best_bits = bits;
    best = order;
  }
  return best;
}

ByteVector EscapeList::write(int order) const {
  EscapeWriter writer(order);
  for (const Escape& escape : escapes_) writer.write(escape);
  return writer.take();
}

}  // namespace thimble
