// scale_tables.h: the probability tables of the weight coder (docs/weight_coder.md), one per scale class, computed with
// integers alone so that they are the same everywhere.
// A code is modelled as a rounded sample of the density exp(-a |x| - b x^2) with standard deviation
// 2^((class - 12) / 4). `shape` picks a and b, from Gaussian to Laplace; the class comes from row and column.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace thimble {

constexpr int kTableShapes = 4;
constexpr int kScaleClasses = 37;
constexpr int kSlotBits = 12;
constexpr uint32_t kSlots = uint32_t{1} << kSlotBits;
constexpr uint32_t kMaxReach = 127;  // codes of larger magnitude are always escapes

// How the slots 0..kSlots-1 of one class are shared out: symbol i has starts[i] to starts[i + 1] - 1, never none.
// Symbols 0..2 * reach are the codes -reach..reach; the last one, where there is an escape, is any larger code.
struct ScaleTable {
  uint32_t reach = 0;
  bool has_escape = false;
  std::vector<uint16_t> starts;  // (symbols + 1), ascending strictly from 0 to kSlots

  uint32_t symbols() const { return 2 * reach + 1 + (has_escape ? 1 : 0); }
  uint32_t escape() const { return 2 * reach + 1; }
  uint32_t slots_of(uint32_t symbol) const { return uint32_t{starts[symbol + 1]} - starts[symbol]; }
  // The symbol of a code, from its magnitude and sign.
  template <typename Code>
  uint32_t symbol_of(Code code) const {
    const int64_t symbol = int64_t{code} + reach;
    return symbol < 0 || symbol > 2 * int64_t{reach} ? escape() : static_cast<uint32_t>(symbol);
  }
};

using ScaleTables = std::array<ScaleTable, kScaleClasses>;

// Tables for codes of at most this magnitude; shape in [0, kTableShapes).
ScaleTables make_scale_tables(int shape, uint32_t max_magnitude);

}  // namespace thimble
