// scale_fit.cpp: moments to start from, then coordinate descent on the real cost.
#include "packer/rans/scale_fit.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <limits>

#include "runtime/codes/trellis.h"

namespace thimble {
namespace {

constexpr int kBitUnits = 1024;  // bits are counted in units of 1 / kBitUnits
constexpr int kPasses = 2;       // over rows and columns
constexpr int kCandidates = 8;   // values tried for a row or column: 4 below the current one to 3 above it
constexpr int kBelow = 4;
// The cost of a code, and of two together, fits in 16 bits: that of its symbol, and of the sign and distance of one
// just beyond all tables.
using Cost = uint16_t;
static_assert(2 * (kSlotBits + 2 * std::bit_width(max_reach(1) + 1)) * kBitUnits <= std::numeric_limits<Cost>::max());
// Sums over this many codes, an even number, fit in 32 bits.
constexpr uint64_t kSumChunk = (uint64_t{1} << 31) >> 16;
// A column's shift added to a row's class, and a candidate's distance, reach this far beyond the classes.
constexpr int kPadding = kLastClass + kBelow;
constexpr int kCostWidth = kScaleClasses + 2 * kPadding;

// log2 of value >= 1 in 1 / kBitUnits, rounded down: one bit of the fraction per squaring.
uint32_t integer_log2(uint32_t value) {
  const int exponent = std::bit_width(value) - 1;
  uint64_t mantissa = (uint64_t{value} << 31) >> exponent;  // [1, 2) in 31 bits
  auto log = static_cast<uint32_t>(exponent);
  for (int unit = 1; unit < kBitUnits; unit *= 2) {
    mantissa = (mantissa * mantissa) >> 31;
    const uint64_t carry = mantissa >> 32;
    mantissa >>= carry;
    log = 2 * log + static_cast<uint32_t>(carry);
  }
  return log;
}

// The levels that tables tell apart: those from `last` on cost as much as it, or one less for its set.
struct LevelRange {
  uint32_t max_code = 0;  // largest code_magnitude()
  uint32_t sets = 1;
  uint32_t last = sets * std::min(max_code, max_reach(sets) + 1) + sets - 1;

  uint32_t clip(uint32_t level) const { return level <= last ? level : last + 1 - sets + (level & (sets - 1)); }
};

// Where the costs of a level begin, for all classes, in every table of a range.
using Offset = uint16_t;
static_assert(2 * (std::max(max_reach(1), max_reach(2)) + 2) * kCostWidth <= std::numeric_limits<Offset>::max());

Offset offset_in(const LevelRange& range, uint32_t level) {
  return static_cast<Offset>(range.clip(level) * kCostWidth + kPadding);
}

// Costs of a level in every class, the classes beyond both ends being those at the ends.
class CostTable {
 public:
  CostTable(int shape, const LevelRange& range) : range_(range), costs_((range.last + 1) * size_t{kCostWidth}) {
    const ScaleTables tables = make_scale_tables(shape, range.max_code, range.sets);
    for (uint32_t level = 0; level <= range.last; ++level) {
      const std::span row = std::span(costs_).subspan(level * size_t{kCostWidth}, kCostWidth);
      const std::span of_set = std::span(tables).subspan(level % range.sets * kScaleClasses, kScaleClasses);
      for (size_t c = 0; c < kScaleClasses; ++c) row[kPadding + c] = cost(of_set[c], level / range.sets);
      std::ranges::fill(row.first(kPadding), row[kPadding]);
      std::ranges::fill(row.last(kPadding), row[kPadding + kLastClass]);
    }
  }

  // Costs of `level` from class `scale_class` on, which may be up to kPadding beyond the ends.
  const Cost* at(uint32_t level, int scale_class) const { return from(offset_in(range_, level), scale_class); }
  const Cost* from(Offset offset, int scale_class) const { return costs_.data() + offset + scale_class; }

 private:
  static Cost cost(const ScaleTable& table, uint32_t magnitude) {
    uint32_t bits = kSlotBits * kBitUnits - integer_log2(table.slots_of(table.symbol_of(magnitude)));
    if (magnitude > table.reach)  // the sign, and Exp-Golomb code of order 0
      bits += 2 * kBitUnits * static_cast<uint32_t>(std::bit_width((magnitude - table.reach - 1) / table.escapes + 1));
    return static_cast<Cost>(bits);
  }

  LevelRange range_;
  std::vector<Cost> costs_;  // (last + 1, kCostWidth)
};

// Codes of rows and columns themselves.
class AxisCost {
 public:
  AxisCost() : table_(0, {max_reach(1), 1}) {}

  int64_t of(int value, int center, int spread) const { return *table_.at(std::abs(value - center), spread); }

  // The rounded mean, and the spread that is cheapest with it.
  void describe(AxisScales& axis) const {
    int64_t sum = 0;
    for (int value : axis.values) sum += value + kScaleClasses;  // not negative, so that division rounds down
    const auto count = static_cast<int64_t>(axis.values.size());
    axis.center = static_cast<int>((sum + count / 2) / count) - kScaleClasses;
    std::array<int64_t, kScaleClasses> totals{};
    for (int value : axis.values)
      for (int spread = 0; spread < kScaleClasses; ++spread)
        totals[static_cast<size_t>(spread)] += of(value, axis.center, spread);
    axis.spread = static_cast<int>(std::ranges::min_element(totals) - totals.begin());
  }

 private:
  CostTable table_;
};

using CandidateSums = std::array<int64_t, kCandidates>;

constexpr std::array<Cost, kCandidates> kNoCosts{};  // beside the last of an odd number of codes

// The costs of two codes with each candidate, added before they are widened.
void add_pair(const Cost* a, const Cost* b, std::array<int32_t, kCandidates>& sums) {
  for (size_t i = 0; i < kCandidates; ++i) sums[i] += static_cast<Cost>(a[i] + b[i]);
}

// What a pass over rows (or columns) needs to choose a value.
struct Choice {
  const AxisCost& own;
  int lowest, highest;
  bool count_own;  // not in the first pass, when center and spread are not known

  // The cheapest candidate for row (or column) i of the axis, whose codes cost `sums` with each.
  void take(AxisScales& axis, size_t i, const CandidateSums& sums) const {
    const int current = axis.values[i];
    int64_t best = std::numeric_limits<int64_t>::max();
    for (int candidate = 0; candidate < kCandidates; ++candidate) {
      const int value = current + candidate - kBelow;
      if (value < lowest || value > highest) continue;
      int64_t cost = sums[static_cast<size_t>(candidate)];
      if (count_own) cost += own.of(value, axis.center, axis.spread);
      if (cost >= best) continue;
      best = cost;
      axis.values[i] = static_cast<int8_t>(value);
    }
  }
};

void choose_rows(ScaleFit& fit, const CostTable& table, std::span<const Offset> offsets, const Choice& choice) {
  const size_t width = fit.columns.values.size();
  for (size_t r = 0; r < fit.rows.values.size(); ++r) {
    CandidateSums totals{};
    for (size_t begin = 0; begin < width; begin += kSumChunk) {
      std::array<int32_t, kCandidates> sums{};
      const size_t end = std::min<size_t>(width, begin + kSumChunk);
      auto costs = [&](size_t k) {
        return table.from(offsets[r * width + k], fit.rows.values[r] + fit.columns.values[k] - kBelow);
      };
      for (size_t k = begin; k + 1 < end; k += 2) add_pair(costs(k), costs(k + 1), sums);
      if ((end - begin) % 2 == 1) add_pair(costs(end - 1), kNoCosts.data(), sums);
      for (size_t i = 0; i < kCandidates; ++i) totals[i] += sums[i];
    }
    choice.take(fit.rows, r, totals);
  }
}

// In stripes, so that sums stay few whatever the width.
void choose_columns(ScaleFit& fit, const CostTable& table, std::span<const Offset> offsets, const Choice& choice) {
  constexpr size_t kStripe = 256;  // whose sums lie in the nearest cache
  const size_t rows = fit.rows.values.size(), width = fit.columns.values.size();
  for (size_t first = 0; first < width; first += kStripe) {
    const size_t count = std::min(kStripe, width - first);
    std::array<CandidateSums, kStripe> totals{};
    for (size_t begin = 0; begin < rows; begin += kSumChunk) {
      std::array<std::array<int32_t, kCandidates>, kStripe> sums{};
      const size_t end = std::min<size_t>(rows, begin + kSumChunk);
      auto costs = [&](size_t r, size_t k) {
        return table.from(offsets[r * width + k], fit.rows.values[r] + fit.columns.values[k] - kBelow);
      };
      for (size_t r = begin; r + 1 < end; r += 2)
        for (size_t k = 0; k < count; ++k) add_pair(costs(r, first + k), costs(r + 1, first + k), sums[k]);
      if ((end - begin) % 2 == 1)
        for (size_t k = 0; k < count; ++k) add_pair(costs(end - 1, first + k), kNoCosts.data(), sums[k]);
      for (size_t k = 0; k < count; ++k)
        for (size_t i = 0; i < kCandidates; ++i) totals[k][i] += sums[k][i];
    }
    for (size_t k = 0; k < count; ++k) choice.take(fit.columns, first + k, totals[k]);
  }
}

// The class whose mean magnitude is nearest to sum / count.
class MomentClasses {
 public:
  explicit MomentClasses(const LevelRange& range) {
    const ScaleTables tables = make_scale_tables(0, range.max_code, range.sets);
    for (size_t t = 0; t < tables.size(); ++t) {
      uint64_t sum = 0;
      for (uint32_t symbol = 0; symbol < tables[t].first_escape(); ++symbol) {
        const uint32_t magnitude = code_magnitude(tables[t].code_of(symbol), tables[t].set);
        sum += uint64_t{range.sets * magnitude + tables[t].set} * tables[t].slots_of(symbol);
      }
      slots_times_magnitude_[t % kScaleClasses] += sum / range.sets;  // sets are equally likely
    }
  }
  int nearest(uint64_t sum, uint64_t count) const {
    for (int c = 0; c < kLastClass; ++c) {
      const auto i = static_cast<size_t>(c);
      const uint64_t middle = (slots_times_magnitude_[i] + slots_times_magnitude_[i + 1]) / 2;
      if (sum < ((middle * count) >> kSlotBits)) return c;
    }
    return kLastClass;
  }

 private:
  std::array<uint64_t, kScaleClasses> slots_times_magnitude_{};
};

void start_from_moments(ScaleFit& fit, const LevelRange& range, std::span<const uint16_t> levels) {
  const size_t rows = fit.rows.values.size(), width = fit.columns.values.size();
  std::vector<uint64_t> column_sums(width);
  const MomentClasses classes(range);
  uint64_t total = 0;
  for (size_t r = 0; r < rows; ++r) {
    uint64_t sum = 0;
    for (size_t k = 0; k < width; ++k) {
      // Magnitudes far beyond all tables would only drown the others.
      const uint64_t magnitude = std::min<uint64_t>(levels[r * width + k], 256);
      sum += magnitude;
      column_sums[k] += magnitude;
    }
    fit.rows.values[r] = static_cast<int8_t>(classes.nearest(sum, width));
    total += sum;
  }
  const int middle = classes.nearest(total, uint64_t{rows} * width);
  for (size_t k = 0; k < width; ++k)
    fit.columns.values[k] = static_cast<int8_t>(classes.nearest(column_sums[k], rows) - middle);
}

void descend(ScaleFit& fit, const CostTable& table, const AxisCost& own, std::span<const Offset> offsets) {
  for (int pass = 0; pass < kPasses; ++pass) {
    choose_rows(fit, table, offsets, {own, 0, kLastClass, pass > 0});
    own.describe(fit.rows);
    choose_columns(fit, table, offsets, {own, -kLastClass, kLastClass, pass > 0});
    own.describe(fit.columns);
  }
}

// How many codes of each level there are in each class, laid out as costs are.
std::vector<uint64_t> count_levels(const ScaleFit& fit, const LevelRange& range, std::span<const Offset> offsets) {
  const size_t width = fit.columns.values.size();
  std::vector<uint64_t> counts((range.last + 1) * size_t{kCostWidth});
  for (size_t r = 0; r < fit.rows.values.size(); ++r)
    for (size_t k = 0; k < width; ++k)
      ++counts[static_cast<size_t>(offsets[r * width + k] + fit.rows.values[r] + fit.columns.values[k])];
  return counts;
}

// Cost of counted codes when each class is `shift` higher.
uint64_t counted_bits(const std::vector<uint64_t>& counts, const CostTable& table, int shift) {
  uint64_t bits = 0;
  for (size_t first = 0; first < counts.size(); first += kCostWidth)  // of a level
    for (int i = 0; i < kCostWidth; ++i) {
      const int scale_class = std::clamp(i - kPadding, 0, kLastClass) + shift;
      bits += counts[first + static_cast<size_t>(i)] * *table.from(static_cast<Offset>(first + kPadding), scale_class);
    }
  return bits;
}

}  // namespace

CodeLevels code_levels(std::span<const int32_t> codes, uint64_t rows, uint64_t columns, int trellis_bits) {
  const Trellis trellis(trellis_bits);
  const uint32_t sets = trellis_bits == 0 ? 1 : 2, cap = kLevelCap / sets;
  std::vector<uint16_t> magnitudes(codes.size());
  std::vector<uint8_t> states(columns);
  uint32_t largest = 0;
  for (uint64_t r = 0; r < rows; ++r) {
    if (r % static_cast<uint64_t>(kTrellisRows) == 0) std::ranges::fill(states, uint8_t{0});
    const int32_t* row = &codes[r * columns];
    uint16_t* out = &magnitudes[r * columns];
    for (uint64_t k = 0; k < columns; ++k) {
      const auto set = static_cast<uint32_t>(Trellis::set(states[k]));
      const uint32_t magnitude = code_magnitude(row[k], set);
      largest = std::max(largest, magnitude);
      out[k] = static_cast<uint16_t>(sets * std::min(magnitude, cap) + set);
      states[k] = static_cast<uint8_t>(trellis.next(states[k], row[k] & 1));
    }
  }
  return {sets, largest, std::move(magnitudes)};
}

ScaleFit fit_scales(const CodeLevels& levels, uint64_t rows, uint64_t columns) {
  constexpr int kMostShift = 3;  // between shapes, of the class that fits the same codes
  static const AxisCost own;
  const std::span<const uint16_t> magnitudes(levels.magnitudes);
  const LevelRange range{levels.largest_code, levels.sets};
  ScaleFit fit{0, {std::vector<int8_t>(rows)}, {std::vector<int8_t>(columns)}};
  start_from_moments(fit, range, magnitudes);
  std::vector<Offset> offsets(magnitudes.size());
  std::ranges::transform(magnitudes, offsets.begin(), [&](uint16_t level) { return offset_in(range, level); });
  const CostTable gaussian(0, range);
  descend(fit, gaussian, own, offsets);

  const std::vector<uint64_t> counts = count_levels(fit, range, offsets);
  uint64_t best = counted_bits(counts, gaussian, 0);
  int best_shift = 0;
  for (int shape = 1; shape < kTableShapes; ++shape) {
    const CostTable table(shape, range);
    for (int shift = -kMostShift; shift <= kMostShift; ++shift)
      if (const uint64_t bits = counted_bits(counts, table, shift); bits < best) {
        best = bits;
        best_shift = shift;
        fit.shape = shape;
      }
  }
  if (fit.shape != 0) {
    for (int8_t& value : fit.rows.values) value = static_cast<int8_t>(std::clamp(value + best_shift, 0, kLastClass));
    descend(fit, CostTable(fit.shape, range), own, offsets);
  }
  return fit;
}

}  // namespace thimble
