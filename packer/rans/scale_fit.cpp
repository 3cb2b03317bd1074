// scale_fit.cpp: moments to start from, then coordinate descent on the real cost.
#include "packer/rans/scale_fit.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <limits>

namespace thimble {
namespace {

constexpr int kLastClass = kScaleClasses - 1;
constexpr int kPasses = 2;      // over rows and columns
constexpr int kCandidates = 8;  // values tried for a row or column: 4 below the current one to 3 above it
constexpr int kBelow = 4;
// Sums over this many codes fit in 32 bits: one code costs less than 64 bits.
constexpr uint64_t kSumChunk = (uint64_t{1} << 31) / (64 * kBitUnits);
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

uint32_t symbol_bits(const ScaleTable& table, uint32_t symbol) {
  return kSlotBits * kBitUnits - integer_log2(table.slots_of(symbol));
}

// What the fit sees of codes: signs do not matter, and a set's lowest bit is part of the magnitude. Without a trellis a
// magnitude is that of the code; with one it is that of the level, 2 * code_magnitude() + set.
struct CodeRange {
  uint32_t max_code = 0;  // largest code_magnitude()
  int sets = 1;
  // Magnitudes from here on cost as much as this one, or one less for its set.
  uint32_t last() const {
    const auto n = static_cast<uint32_t>(sets);
    return n * std::min(max_code, max_reach(sets) + 1) + n - 1;
  }
  template <typename Code>
  uint32_t magnitude(Code code) const {
    const auto magnitude = static_cast<uint64_t>(std::abs(int64_t{code}));
    if (magnitude <= last()) return static_cast<uint32_t>(magnitude);
    return sets == 1 ? last() : last() - 1 + static_cast<uint32_t>(magnitude & 1);
  }
};

// Costs of a magnitude in every class, the classes beyond both ends being those at the ends.
class CostTable {
 public:
  CostTable(int shape, const CodeRange& range) : range_(range), costs_((range.last() + 1) * size_t{kCostWidth}) {
    const ScaleTables tables = make_scale_tables(shape, range.max_code, range.sets);
    const auto sets = static_cast<uint32_t>(range.sets);
    for (uint32_t magnitude = 0; magnitude <= range.last(); ++magnitude) {
      const std::span row = std::span(costs_).subspan(magnitude * size_t{kCostWidth}, kCostWidth);
      const std::span of_set = std::span(tables).subspan(magnitude % sets * kScaleClasses, kScaleClasses);
      for (size_t c = 0; c < kScaleClasses; ++c) row[kPadding + c] = cost(of_set[c], magnitude / sets);
      std::ranges::fill(row.first(kPadding), row[kPadding]);
      std::ranges::fill(row.last(kPadding), row[kPadding + kLastClass]);
    }
  }

  // Costs of `code` from class `scale_class` on, which may be up to kPadding beyond the ends.
  template <typename Code>
  const int32_t* at(Code code, int scale_class) const {
    return &costs_[range_.magnitude(code) * size_t{kCostWidth} + static_cast<size_t>(scale_class + kPadding)];
  }
  const CodeRange& range() const { return range_; }

 private:
  static int32_t cost(const ScaleTable& table, uint32_t magnitude) {
    const uint32_t symbol = table.symbol_of(static_cast<int64_t>(magnitude));
    uint32_t bits = symbol_bits(table, symbol);
    if (magnitude > table.reach)  // the sign, and Exp-Golomb code of order 0
      bits += 2 * kBitUnits * static_cast<uint32_t>(std::bit_width((magnitude - table.reach - 1) / table.escapes + 1));
    return static_cast<int32_t>(bits);
  }

  CodeRange range_;
  std::vector<int32_t> costs_;  // (last + 1, kCostWidth)
};

// Codes of rows and columns themselves.
class AxisCost {
 public:
  AxisCost() : table_(0, {max_reach(1), 1}) {}

  int64_t of(int value, int center, int spread) const { return *table_.at(value - center, spread); }

  int64_t total(const AxisScales& axis) const {
    int64_t sum = 0;
    for (int value : axis.values) sum += of(value, axis.center, axis.spread);
    return sum;
  }

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

template <typename Code>
void choose_rows(ScaleFit& fit, const CostTable& table, std::span<const Code> codes, const Choice& choice) {
  const size_t width = fit.columns.values.size();
  for (size_t r = 0; r < fit.rows.values.size(); ++r) {
    CandidateSums totals{};
    for (size_t begin = 0; begin < width; begin += kSumChunk) {
      std::array<int32_t, kCandidates> sums{};
      for (size_t k = begin; k < std::min<size_t>(width, begin + kSumChunk); ++k) {
        const int32_t* cost = table.at(codes[r * width + k], fit.rows.values[r] + fit.columns.values[k] - kBelow);
        for (size_t i = 0; i < kCandidates; ++i) sums[i] += cost[i];
      }
      for (size_t i = 0; i < kCandidates; ++i) totals[i] += sums[i];
    }
    choice.take(fit.rows, r, totals);
  }
}

// In stripes, so that sums stay few whatever the width.
template <typename Code>
void choose_columns(ScaleFit& fit, const CostTable& table, std::span<const Code> codes, const Choice& choice) {
  constexpr size_t kStripe = 1024;
  const size_t rows = fit.rows.values.size(), width = fit.columns.values.size();
  for (size_t first = 0; first < width; first += kStripe) {
    const size_t count = std::min(kStripe, width - first);
    std::array<CandidateSums, kStripe> totals{};
    for (size_t begin = 0; begin < rows; begin += kSumChunk) {
      std::array<std::array<int32_t, kCandidates>, kStripe> sums{};
      for (size_t r = begin; r < std::min<size_t>(rows, begin + kSumChunk); ++r)
        for (size_t k = 0; k < count; ++k) {
          const int scale_class = fit.rows.values[r] + fit.columns.values[first + k];
          const int32_t* cost = table.at(codes[r * width + first + k], scale_class - kBelow);
          for (size_t i = 0; i < kCandidates; ++i) sums[k][i] += cost[i];
        }
      for (size_t k = 0; k < count; ++k)
        for (size_t i = 0; i < kCandidates; ++i) totals[k][i] += sums[k][i];
    }
    for (size_t k = 0; k < count; ++k) choice.take(fit.columns, first + k, totals[k]);
  }
}

// The class whose mean magnitude is nearest to sum / count.
class MomentClasses {
 public:
  explicit MomentClasses(const CodeRange& range) {
    const ScaleTables tables = make_scale_tables(0, range.max_code, range.sets);
    const auto sets = static_cast<uint32_t>(range.sets);
    for (size_t t = 0; t < tables.size(); ++t) {
      uint64_t sum = 0;
      for (uint32_t symbol = 0; symbol < tables[t].first_escape(); ++symbol) {
        const uint32_t magnitude = code_magnitude(tables[t].code_of(symbol), static_cast<int>(tables[t].set));
        sum += uint64_t{sets * magnitude + tables[t].set} * tables[t].slots_of(symbol);
      }
      slots_times_magnitude_[t % kScaleClasses] += sum / sets;  // sets are equally likely
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

template <typename Code>
void start_from_moments(ScaleFit& fit, const CodeRange& range, std::span<const Code> codes) {
  const size_t rows = fit.rows.values.size(), width = fit.columns.values.size();
  std::vector<uint64_t> column_sums(width);
  const MomentClasses classes(range);
  uint64_t total = 0;
  for (size_t r = 0; r < rows; ++r) {
    uint64_t sum = 0;
    for (size_t k = 0; k < width; ++k) {
      // Magnitudes far beyond all tables would only drown the others.
      const auto magnitude = std::min<uint64_t>(static_cast<uint64_t>(std::abs(int64_t{codes[r * width + k]})), 256);
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

template <typename Code>
void descend(ScaleFit& fit, const CostTable& table, const AxisCost& own, std::span<const Code> codes) {
  for (int pass = 0; pass < kPasses; ++pass) {
    choose_rows(fit, table, codes, {own, 0, kLastClass, pass > 0});
    own.describe(fit.rows);
    choose_columns(fit, table, codes, {own, -kLastClass, kLastClass, pass > 0});
    own.describe(fit.columns);
  }
}

// How many codes of each magnitude there are in each class: (kScaleClasses, last + 1).
template <typename Code>
std::vector<uint64_t> count_codes(const ScaleFit& fit, const CodeRange& range, std::span<const Code> codes) {
  const size_t width = fit.columns.values.size();
  const size_t magnitudes = range.last() + size_t{1};
  std::vector<uint64_t> counts(kScaleClasses * magnitudes);
  for (size_t r = 0; r < fit.rows.values.size(); ++r)
    for (size_t k = 0; k < width; ++k) {
      const auto scale_class = static_cast<size_t>(class_of(fit.rows.values[r], fit.columns.values[k]));
      ++counts[scale_class * magnitudes + range.magnitude(codes[r * width + k])];
    }
  return counts;
}

// Cost of counted codes when each class is `shift` higher.
uint64_t counted_bits(const std::vector<uint64_t>& counts, const CostTable& table, int shift) {
  const size_t magnitudes = table.range().last() + size_t{1};
  uint64_t bits = 0;
  for (int c = 0; c < kScaleClasses; ++c)
    for (size_t m = 0; m < magnitudes; ++m)
      bits += counts[static_cast<size_t>(c) * magnitudes + m] *
              static_cast<uint64_t>(*table.at(static_cast<int64_t>(m), c + shift));
  return bits;
}

// Of the symbols alone.
uint64_t counted_symbol_bits(const std::vector<uint64_t>& counts, const ScaleTables& tables) {
  const size_t magnitudes = counts.size() / kScaleClasses, sets = tables.size() / kScaleClasses;
  uint64_t bits = 0;
  for (size_t c = 0; c < kScaleClasses; ++c)
    for (size_t m = 0; m < magnitudes; ++m) {
      const ScaleTable& table = tables[m % sets * kScaleClasses + c];
      bits += counts[c * magnitudes + m] * symbol_bits(table, table.symbol_of(static_cast<int64_t>(m / sets)));
    }
  return bits;
}

template <typename Code>
ScaleFit fit_codes(std::span<const Code> codes, uint64_t rows, uint64_t columns, const CodeRange& range) {
  constexpr int kMostShift = 3;  // between shapes, of the class that fits the same codes
  static const AxisCost own;
  ScaleFit fit;
  fit.rows.values.resize(rows);
  fit.columns.values.resize(columns);
  start_from_moments(fit, range, codes);
  const CostTable gaussian(0, range);
  descend(fit, gaussian, own, codes);

  std::vector<uint64_t> counts = count_codes(fit, range, codes);
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
    const CostTable table(fit.shape, range);
    descend(fit, table, own, codes);
    counts = count_codes(fit, range, codes);
  }
  fit.code_bits = counted_symbol_bits(counts, make_scale_tables(fit.shape, range.max_code, range.sets));
  fit.axis_bits = static_cast<uint64_t>(own.total(fit.rows) + own.total(fit.columns));
  return fit;
}

}  // namespace

template <typename Code>
ScaleFit fit_scales(std::span<const Code> codes, uint64_t rows, uint64_t columns, uint32_t max_magnitude) {
  return fit_codes(codes, rows, columns, {max_magnitude, 1});
}

ScaleFit fit_scales(const TrellisLevels& levels, uint64_t rows, uint64_t columns) {
  return fit_codes(std::span(levels.magnitudes), rows, columns, {levels.largest_code, 2});
}

template ScaleFit fit_scales(std::span<const int8_t>, uint64_t, uint64_t, uint32_t);
template ScaleFit fit_scales(std::span<const int32_t>, uint64_t, uint64_t, uint32_t);

}  // namespace thimble
