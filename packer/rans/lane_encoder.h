// lane_encoder.h: blocks of lane_rans.h, written.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "packer/rans/lane_rans.h"

namespace thimble {

// Tables as an encoder reads them: how every code changes a state. Those of some classes, of each set.
class SymbolTables {
 public:
  // With s slots from number b on, state x becomes (x / s) * kSlots + x % s + b = x + addend + x / s * (kSlots - s).
  struct Symbol {
    uint64_t reciprocal;  // of s, in 2^-64, rounded up: x * reciprocal / 2^64 = x / s for all of 32 bits, but x - 1 for
    uint16_t slots;       // s = 1
    uint16_t addend;      // b, and for s = 1 the kSlots - 1 that x - 1 leaves out
    bool is_escape;

    uint32_t after(uint32_t state) const {
      const auto quotient = static_cast<uint32_t>((static_cast<unsigned __int128>(reciprocal) * state) >> 64);
      return state + addend + quotient * (kSlots - slots);
    }
  };

  SymbolTables(ScaleTables tables, ClassRange classes);

  const Symbol& symbol(uint32_t table, int32_t code) const {
    // Outermost codes are escapes of their parity wherever there are larger ones.
    if (code < kLowest || code >= kLowest + kCodes) [[unlikely]]
      code = code % 2 == 0 ? kLowest : odd_escape_;
    return symbols_[first_of_[table] + static_cast<size_t>(code - kLowest)];
  }
  const ScaleTable& operator[](uint32_t table) const { return tables_[table]; }

 private:
  static constexpr int32_t kLowest = -128, kCodes = 256;

  ScaleTables tables_;
  int32_t odd_escape_;                                // a code, as kLowest is one
  std::array<size_t, 2 * kScaleClasses> first_of_{};  // by table
  std::vector<Symbol> symbols_;                       // (tables, kCodes)
};

// `lanes` states (u32), then words (u16), in the order in which the decoder reads them. lanes: a power of two.
// table_of and codes: (elements), each code with the table (class, and set) that codes it. Codes beyond a table's reach
// are coded as its escape, and appended to `escapes`.
ByteVector encode_block(const SymbolTables& tables, std::span<const uint8_t> table_of, std::span<const int32_t> codes,
                        uint32_t lanes, std::vector<Escape>& escapes);

}  // namespace thimble
