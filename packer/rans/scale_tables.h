// scale_tables.h: the probability tables of the weight coder (docs/reference/weight_coder.md), one per scale class,
// computed with integers alone so that they are the same everywhere.
// A code is modelled as a rounded sample of the density exp(-a |x| - b x^2) with standard deviation
// 2^((class - 12) / 4). `shape` picks a and b, from Gaussian to Laplace; the class comes from row and column.
// With a trellis (runtime/codes/trellis.h) codes of set 1 stand for values half a code higher: they have tables of
// their own, in which q and -1 - q are alike, as q and -q are in set 0. Both halves of a set's symmetry count as one
// magnitude.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace thimble {

constexpr int kTableShapes = 4;
constexpr int kScaleClasses = 37;
constexpr int kLastClass = kScaleClasses - 1;
constexpr int kSlotBits = 12;
constexpr uint32_t kSlots = uint32_t{1} << kSlotBits;

// Codes of larger magnitude are always escapes. 256 symbols at most, whatever the number of sets.
constexpr uint32_t max_reach(uint32_t sets) { return sets == 1 ? 127 : 126; }

// |q| in set 0; in set 1 q where q >= 0 and -1 - q below.
constexpr uint32_t code_magnitude(int64_t code, uint32_t set) {
  return static_cast<uint32_t>(code >= 0 ? code : -code - set);
}

// How the slots 0..kSlots-1 of one class are shared out: symbol i has starts[i] to starts[i + 1] - 1, never none.
// Symbols 0..2 * reach + set are the codes -reach - set..reach, of magnitudes up to `reach`. Symbols after them are
// escapes, where there are larger codes: one for any code, or with a trellis, whose next state depends on it, one for
// even codes and one for odd ones.
struct ScaleTable {
  uint32_t reach = 0;
  uint32_t set = 0;
  uint32_t escapes = 0;          // 0, 1 or 2 symbols
  std::vector<uint16_t> starts;  // (symbols + 1), ascending strictly from 0 to kSlots

  uint32_t symbols() const { return first_escape() + escapes; }
  uint32_t first_escape() const { return 2 * reach + set + 1; }
  uint32_t slots_of(uint32_t symbol) const { return uint32_t{starts[symbol + 1]} - starts[symbol]; }
  // Whose slot it is.
  uint32_t symbol_at(uint32_t slot) const {
    return static_cast<uint32_t>(std::ranges::upper_bound(starts, slot) - starts.begin()) - 1;
  }
  int32_t code_of(uint32_t symbol) const { return static_cast<int32_t>(symbol) - static_cast<int32_t>(reach + set); }
  uint32_t symbol_of(int64_t code) const {
    const int64_t symbol = code + reach + set;
    if (symbol >= 0 && symbol < first_escape()) return static_cast<uint32_t>(symbol);
    return first_escape() + (escapes == 2 ? static_cast<uint32_t>(code & 1) : 0);
  }
};

// Set after set, kScaleClasses tables each.
using ScaleTables = std::vector<ScaleTable>;

// Tables for codes of at most this magnitude; shape in [0, kTableShapes); sets: 1, or 2 with a trellis.
ScaleTables make_scale_tables(int shape, uint32_t max_magnitude, uint32_t sets = 1);

}  // namespace thimble
