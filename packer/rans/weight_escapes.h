// weight_escapes.h: codes beyond their tables, as a string of bits: what the escape symbol leaves open is a sign and a
// distance, counted from the nearest code that the same symbol stands for with that sign.
// A distance d >= 0 with its sign takes an Exp-Golomb code of order k, its bits lowest first: u = d + 2^k has n bits;
// n - 1 - k zeros, a one, the n - 1 low bits of u, then 1 when negative. Bytes fill from their lowest bit.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "packer/rans/scale_tables.h"
#include "runtime/base/byte_cursor.h"

namespace thimble {

constexpr int kMaxEscapeOrder = 31;

struct Escape {
  uint32_t distance = 0;
  bool negative = false;
};

// Of a code that is not within the table's reach.
Escape escape_of(const ScaleTable& table, int64_t code);

// Length in bits of one escape, and the order that is cheapest for all.
uint64_t escape_length_bits(uint32_t distance, int order);
int cheapest_escape_order(std::span<const Escape> escapes);

// Unused bits of the last byte are zero.
ByteVector write_escapes(std::span<const Escape> escapes, int order);

class EscapeReader {
 public:
  // `max_magnitude`: the largest that a code may have.
  EscapeReader(Bytes bytes, int order, uint32_t max_magnitude, const std::string& where)
      : bytes_(bytes), order_(order), max_magnitude_(max_magnitude), where_(where) {}
  void set_max_magnitude(uint32_t magnitude) { max_magnitude_ = magnitude; }

  // Throws FormatError(where, ...) when the bits end, or the distance is above `largest`.
  Escape read(uint32_t largest);

  // The code that `symbol` of the table stands for. Its magnitude is at most the largest allowed, or a FormatError.
  int32_t read_code(const ScaleTable& table, uint32_t symbol);

  // Nothing may follow the last escape but the unused bits of its byte, which are zero.
  void finish();

 private:
  uint32_t bit();

  Bytes bytes_;
  int order_;
  uint32_t max_magnitude_;
  const std::string& where_;
  uint64_t next_bit_ = 0;
};

}  // namespace thimble
