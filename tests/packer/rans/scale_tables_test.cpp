// scale_tables_test.cpp: every table shares out all slots, symmetrically, as the density says; and never changes.
#include "packer/rans/scale_tables.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "runtime/base/hash.h"

namespace thimble::scale_tables_test {
namespace {

const uint32_t kMagnitudes[] = {0, 1, 2, 3, 7, 15, 31, 63, 100, 126, 127, 128, 1000, 2147483647};

void expect_shared_out(const ScaleTable& table) {
  ASSERT_EQ(table.starts.size(), table.symbols() + 1);
  EXPECT_EQ(table.starts.front(), 0);
  EXPECT_EQ(table.starts.back(), kSlots);
  for (uint32_t symbol = 0; symbol < table.symbols(); ++symbol)
    EXPECT_LT(table.starts[symbol], table.starts[symbol + 1]);
  EXPECT_LE(table.symbols(), 256u);
}

TEST(ScaleTablesTest, EverySymbolHasASlotAndNoneIsLeft) {
  for (uint32_t sets : {1u, 2u})
    for (int shape = 0; shape < kTableShapes; ++shape)
      for (uint32_t max_magnitude = 0; max_magnitude <= 130; ++max_magnitude) {
        SCOPED_TRACE(::testing::Message() << sets << " sets, shape " << shape << ", " << max_magnitude);
        const ScaleTables tables = make_scale_tables(shape, max_magnitude, sets);
        ASSERT_EQ(tables.size(), size_t{sets} * kScaleClasses);
        for (const ScaleTable& table : tables) expect_shared_out(table);
      }
}

TEST(ScaleTablesTest, CodesBeyondTheReachAreEscapes) {
  for (uint32_t max_magnitude : kMagnitudes)
    for (const ScaleTable& table : make_scale_tables(0, max_magnitude)) {
      EXPECT_LE(table.reach, std::min(max_magnitude, max_reach(1)));
      EXPECT_EQ(table.escapes, table.reach < max_magnitude ? 1u : 0u);
      const auto reach = static_cast<int32_t>(table.reach);
      EXPECT_EQ(table.symbol_of(-reach), 0u);
      EXPECT_EQ(table.symbol_of(0), table.reach);
      EXPECT_EQ(table.symbol_of(reach), 2 * table.reach);
      EXPECT_EQ(table.symbol_of(reach + 1), table.first_escape());
      EXPECT_EQ(table.symbol_of(-reach - 1), table.first_escape());
      EXPECT_EQ(table.symbol_of(INT32_MAX), table.first_escape());
    }
}

TEST(ScaleTablesTest, BothSignsAreEqual) {
  for (int shape = 0; shape < kTableShapes; ++shape)
    for (uint32_t max_magnitude : kMagnitudes)
      for (const ScaleTable& table : make_scale_tables(shape, max_magnitude))
        for (uint32_t q = 1; q <= table.reach; ++q)
          EXPECT_EQ(table.slots_of(table.reach - q), table.slots_of(table.reach + q));
}

// The probability that a normal variable of this deviation rounds to q.
double gaussian_mass(double deviation, double q) {
  auto below = [&](double x) { return 0.5 * std::erfc(-x / deviation / std::sqrt(2.0)); };
  return below(q + 0.5) - below(q - 0.5);
}

TEST(ScaleTablesTest, GaussianIsWithinASlotOfTheNormalDistribution) {
  const ScaleTables tables = make_scale_tables(0, 1000);
  for (int c = 0; c < kScaleClasses; ++c) {
    const ScaleTable& table = tables[static_cast<size_t>(c)];
    const double deviation = std::exp2((c - 12) / 4.0);
    for (uint32_t q = 1; q <= table.reach; ++q) {
      const double slots = kSlots * gaussian_mass(deviation, q);
      // Half a slot of rounding; cells of 1/32 deviation; at least one slot.
      EXPECT_NEAR(table.slots_of(table.reach + q), std::max(1.0, slots), 0.6 + 0.002 * slots) << c << ", " << q;
    }
  }
}

TEST(ScaleTablesTest, LaplaceHasItsTail) {
  const ScaleTable table = make_scale_tables(3, 1000)[20];  // deviation 4
  const double ratio = std::exp(-std::sqrt(2.0) / 4);       // of one code to the next
  for (uint32_t q = 1; q < 12; ++q)
    EXPECT_NEAR(static_cast<double>(table.slots_of(table.reach + q + 1)),
                ratio * static_cast<double>(table.slots_of(table.reach + q)), 1.2);
}

// Set 1: codes -reach - 1..reach, q and -1 - q alike; escapes say whether the code is even or odd.
TEST(ScaleTablesTest, CodesOfBothSetsHaveSymbols) {
  for (uint32_t max_magnitude : kMagnitudes)
    for (const ScaleTable& table : make_scale_tables(0, max_magnitude, 2)) {
      EXPECT_LE(table.reach, std::min(max_magnitude, max_reach(2)));
      EXPECT_EQ(table.escapes, table.reach < max_magnitude ? 2u : 0u);
      const auto reach = static_cast<int32_t>(table.reach), set = static_cast<int32_t>(table.set);
      for (int32_t code = -reach - set; code <= reach; ++code) {
        EXPECT_EQ(table.code_of(table.symbol_of(code)), code);
        EXPECT_LE(code_magnitude(code, table.set), table.reach);
      }
      EXPECT_EQ(table.symbol_of(-reach - set), 0u);
      for (int32_t beyond : {reach + 1, reach + 2, -reach - set - 1, -reach - set - 2, INT32_MAX, -INT32_MAX}) {
        EXPECT_GT(code_magnitude(beyond, table.set), table.reach);
        EXPECT_EQ(table.symbol_of(beyond), table.first_escape() + (table.escapes == 2 ? beyond & 1 : 0));
      }
      for (uint32_t symbol = 0; symbol < table.first_escape(); ++symbol) {
        const uint32_t mirrored = table.slots_of(table.first_escape() - 1 - symbol);
        EXPECT_NEAR(table.slots_of(symbol), mirrored, code_magnitude(table.code_of(symbol), table.set) == 0 ? 1 : 0);
      }
    }
}

TEST(ScaleTablesTest, SetOneIsHalfACodeHigher) {
  const ScaleTables tables = make_scale_tables(0, 1000, 2);
  for (int c = 0; c < kScaleClasses; ++c) {
    const ScaleTable& table = tables[static_cast<size_t>(kScaleClasses + c)];
    EXPECT_EQ(table.set, 1u);
    const double deviation = std::exp2((c - 12) / 4.0);
    for (uint32_t q = 1; q <= table.reach; ++q) {
      const double slots = kSlots * gaussian_mass(deviation, q + 0.5);
      EXPECT_NEAR(table.slots_of(table.symbol_of(static_cast<int32_t>(q))), std::max(1.0, slots), 0.6 + 0.002 * slots)
          << c << ", " << q;
    }
  }
}

// Clipped codes pile up at the largest one.
TEST(ScaleTablesTest, OutermostCodeTakesWhatLiesBeyond) {
  const ScaleTable table = make_scale_tables(0, 3)[20];  // deviation 4, codes -3..3
  EXPECT_EQ(table.reach, 3u);
  EXPECT_GT(table.slots_of(6), 2 * table.slots_of(5));
}

// Changing any table changes the format.
TEST(ScaleTablesTest, TablesAreThoseOfTheFormat) {
  Hasher hasher;
  for (int shape = 0; shape < kTableShapes; ++shape)
    for (uint32_t max_magnitude : kMagnitudes)
      for (const ScaleTable& table : make_scale_tables(shape, max_magnitude))
        for (uint16_t start : table.starts) hasher.add(uint64_t{start});
  EXPECT_EQ(hex64(hasher.digest()), "369dd688469dcc29");
  const std::vector<uint16_t> unit = {0, 1, 25, 273, 1263, 2832, 3822, 4070, 4094, 4095, 4096};
  EXPECT_EQ(make_scale_tables(0, 1000)[12].starts, unit);  // deviation 1: codes -4..4, an escape
}

TEST(ScaleTablesTest, TablesOfBothSetsAreThoseOfTheFormat) {
  Hasher hasher;
  for (int shape = 0; shape < kTableShapes; ++shape)
    for (uint32_t max_magnitude : kMagnitudes)
      for (const ScaleTable& table : make_scale_tables(shape, max_magnitude, 2))
        for (uint16_t start : table.starts) hasher.add(uint64_t{start});
  EXPECT_EQ(hex64(hasher.digest()), "e37b3b8c11cc44cf");
  const std::vector<uint16_t> unit = {0, 5, 93, 650, 2047, 3444, 4001, 4089, 4094, 4095, 4096};
  EXPECT_EQ(make_scale_tables(0, 1000, 2)[kScaleClasses + 12].starts, unit);  // deviation 1: codes -4..3, two escapes
}

}  // namespace
}  // namespace thimble::scale_tables_test
