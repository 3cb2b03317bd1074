// scale_tables.cpp: integrates the density over each code's interval, in fixed point.
// All intermediate values fit in 63 bits: no cell weighs more than 2^30, there are 256 of them.
#include "packer/rans/scale_tables.h"

#include <algorithm>
#include <array>

namespace thimble {
namespace {

// The density is constant on cells of 1/32 standard deviation, up to 8 of them; beyond, it is zero.
constexpr uint64_t kCells = 256;
constexpr int kFractionBits = 16;  // of a position within a cell

// exp(-a h - 2 b h^2) and exp(-2 b h^2) with h = 1/32, times 2^30: the ratio of the first two cells, and by how much
// the ratio shrinks from one pair of cells to the next. b makes the variance 1.
struct ScaleShape {
  uint64_t first_ratio;
  uint64_t ratio_decay;
};
constexpr std::array<ScaleShape, kTableShapes> kShapes = {{
    {1072693760, 1072693760},  // a = 0, b = 1/2: Gaussian
    {1056461846, 1073098699},  // a = 1/2, b = 0.306758
    {1040443749, 1073470979},  // a = 1, b = 0.129165
    {1027321989, 1073741824},  // a = sqrt(2), b = 0: Laplace
}};

// 2^(30 - j / 4)
constexpr std::array<uint64_t, 4> kQuarterOctaves = {1073741824, 902905651, 759250125, 638450708};

// The mass of [0, x) for x in standard deviations.
class Density {
 public:
  explicit Density(int shape) {
    uint64_t weight = uint64_t{1} << 30;
    uint64_t ratio = kShapes[static_cast<size_t>(shape)].first_ratio;
    for (uint64_t i = 0; i < kCells; ++i) {
      sums_[i + 1] = sums_[i] + weight;
      weight = (weight * ratio) >> 30;
      ratio = (ratio * kShapes[static_cast<size_t>(shape)].ratio_decay) >> 30;
    }
  }

  uint64_t total() const { return sums_[kCells]; }

  // `position` counts cells in 1 / 2^kFractionBits.
  uint64_t mass_below(uint64_t position) const {
    const uint64_t cell = position >> kFractionBits;
    if (cell >= kCells) return total();
    const uint64_t fraction = position & ((uint64_t{1} << kFractionBits) - 1);
    return sums_[cell] + (((sums_[cell + 1] - sums_[cell]) * fraction) >> kFractionBits);
  }

 private:
  std::array<uint64_t, kCells + 1> sums_{};
};

// What one class and set asks of the density.
class ClassMasses {
 public:
  ClassMasses(const Density& density, int scale_class, uint32_t set) : density_(density), set_(set) {
    // Half a code in positions: 2^20 / standard deviation.
    const auto c = static_cast<unsigned>(scale_class);
    half_code_ = kQuarterOctaves[c % 4] >> (7 + c / 4);
  }

  uint64_t total() const { return density_.total(); }
  // Of the codes of magnitudes 0..q on one side: code q ends half a code above q, in set 1 a whole one.
  uint64_t up_to(uint32_t q) const { return density_.mass_below((2 * uint64_t{q} + 1 + set_) * half_code_); }
  uint64_t beyond(uint32_t q) const { return total() - up_to(q); }
  // Slots for `mass` out of `of`: rounded, never none.
  static uint32_t share(uint64_t mass, uint64_t of) {
    return std::max<uint32_t>(1, static_cast<uint32_t>((mass * kSlots + of / 2) / of));
  }

 private:
  const Density& density_;
  uint32_t set_;
  uint64_t half_code_;
};

// The largest magnitude with symbols: larger ones have less than one slot's mass, unless `limit` comes first.
uint32_t choose_reach(const ClassMasses& masses, uint32_t limit) {
  uint32_t reach = 0;
  while (reach < limit && masses.beyond(reach) << kSlotBits >= masses.total()) ++reach;
  return reach;
}

ScaleTable make_table(const Density& density, int scale_class, uint32_t set, uint32_t max_magnitude, uint32_t sets) {
  const ClassMasses masses(density, scale_class, set);
  ScaleTable table;
  table.set = set;
  table.reach = choose_reach(masses, std::min(max_magnitude, max_reach(sets)));
  table.escapes = table.reach < max_magnitude ? sets : 0;

  std::vector<uint32_t> slots(table.symbols());
  uint32_t taken = 0;
  for (uint32_t q = 1; q <= table.reach; ++q) {
    // Without an escape, the outermost codes stand for everything beyond them: such codes were clipped.
    const bool outermost = q == table.reach && table.escapes == 0;
    const uint64_t mass = (outermost ? masses.total() : masses.up_to(q)) - masses.up_to(q - 1);
    const uint32_t above = table.reach + table.set + q, below = table.reach - q;
    slots[below] = slots[above] = ClassMasses::share(mass, 2 * masses.total());
    taken += 2 * slots[above];
  }
  for (uint32_t escape = 0; escape < table.escapes; ++escape)
    taken += slots[table.first_escape() + escape] =
        ClassMasses::share(masses.beyond(table.reach), table.escapes * masses.total());
  // Magnitude 0 has what is left, always more than any rounding: all for code 0, in set 1 half for code -1.
  const uint32_t left = kSlots - taken;
  if (table.set == 1) slots[table.reach] = left / 2;
  slots[table.reach + table.set] = table.set == 1 ? left - left / 2 : left;

  table.starts.push_back(0);
  for (uint32_t count : slots) table.starts.push_back(static_cast<uint16_t>(table.starts.back() + count));
  return table;
}

}  // namespace

ScaleTables make_scale_tables(int shape, uint32_t max_magnitude, uint32_t sets) {
  const Density density(shape);
  ScaleTables tables;
  for (uint32_t set = 0; set < sets; ++set)
    for (int c = 0; c < kScaleClasses; ++c) tables.push_back(make_table(density, c, set, max_magnitude, sets));
  return tables;
}

}  // namespace thimble
