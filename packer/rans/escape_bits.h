// escape_bits.h: signed numbers of any size as a string of bits: the codes that a probability table has no symbol for.
// A distance d >= 0 with its sign takes an Exp-Golomb code of order k, its bits lowest first: u = d + 2^k has n bits;
// n - 1 - k zeros, a one, the n - 1 low bits of u, then 1 when negative. Bytes fill from their lowest bit.
#pragma once

#include <bit>
#include <string>

#include "runtime/base/byte_cursor.h"

namespace thimble {

constexpr int kMaxEscapeOrder = 31;

struct Escape {
  uint32_t distance = 0;
  bool negative = false;
};

inline uint64_t escape_length_bits(uint32_t distance, int order) {
  const auto bits = static_cast<int>(std::bit_width(uint64_t{distance} + (uint64_t{1} << order)));
  return static_cast<uint64_t>(2 * bits - order);
}

class EscapeWriter {
 public:
  explicit EscapeWriter(int order) : order_(order) {}

  void write(const Escape& escape) {
    const uint64_t u = escape.distance + (uint64_t{1} << order_);
    const int low_bits = static_cast<int>(std::bit_width(u)) - 1;
    put(0, low_bits - order_);
    put(1, 1);
    put(u & ((uint64_t{1} << low_bits) - 1), low_bits);
    put(escape.negative ? 1 : 0, 1);
  }

  // Unused bits of the last byte are zero.
  ByteVector take() { return std::move(bytes_); }

 private:
  void put(uint64_t value, int count) {
    for (int i = 0; i < count; ++i, ++bit_count_) {
      if (bit_count_ % 8 == 0) bytes_.push_back(std::byte{0});
      bytes_.back() |= static_cast<std::byte>(((value >> i) & 1) << (bit_count_ % 8));
    }
  }

  int order_;
  ByteVector bytes_;
  uint64_t bit_count_ = 0;
};

class EscapeReader {
 public:
  EscapeReader(Bytes bytes, int order, const std::string& where) : bytes_(bytes), order_(order), where_(where) {}

  // Throws FormatError(where, ...) when the bits end, or the distance is above `largest`.
  Escape read(uint32_t largest) {
    int low_bits = order_;
    while (bit() == 0)
      if (++low_bits > 32) throw FormatError(where_, "an escape of more than 32 bits");
    uint64_t u = uint64_t{1} << low_bits;
    for (int i = 0; i < low_bits; ++i) u |= uint64_t{bit()} << i;
    const uint64_t distance = u - (uint64_t{1} << order_);
    if (distance > largest)
      throw FormatError(where_, "an escape lies " + std::to_string(distance) + " beyond its table, at most " +
                                    std::to_string(largest) + " allowed");
    return {static_cast<uint32_t>(distance), bit() == 1};
  }

  // Nothing may follow the last escape but the unused bits of its byte, which are zero.
  void finish() {
    while (next_bit_ % 8 != 0)
      if (bit() != 0) throw FormatError(where_, "unused bits after the last escape are not zero");
    if (next_bit_ != 8 * uint64_t{bytes_.size()})
      throw FormatError(where_, std::to_string(bytes_.size() - next_bit_ / 8) + " B after the last escape");
  }

 private:
  uint32_t bit() {
    if (next_bit_ / 8 >= bytes_.size()) throw FormatError(where_, "the escapes end too early");
    const uint32_t value = (std::to_integer<uint32_t>(bytes_[next_bit_ / 8]) >> (next_bit_ % 8)) & 1;
    ++next_bit_;
    return value;
  }

  Bytes bytes_;
  int order_;
  const std::string& where_;
  uint64_t next_bit_ = 0;
};

}  // namespace thimble
