// weight_escapes_test.cpp: whatever a table has no symbol for comes back from its escape symbol, sign and distance.
#include "packer/rans/weight_escapes.h"

#include <gtest/gtest.h>

namespace thimble::weight_escapes_test {
namespace {

const std::string kWhere = "test";

TEST(WeightEscapesTest, CodesBeyondEveryTableComeBack) {
  for (uint32_t sets : {1u, 2u}) {
    const ScaleTables tables = make_scale_tables(0, 2147483646, sets);
    std::vector<uint8_t> table_of;
    std::vector<int32_t> codes;
    for (size_t t = 0; t < tables.size(); ++t)
      for (int32_t magnitude = 0; magnitude < 300; ++magnitude)
        for (int32_t code : {magnitude, -magnitude, 2147483646 - magnitude, magnitude - 2147483646}) {
          table_of.push_back(static_cast<uint8_t>(t));
          codes.push_back(code);
        }
    std::vector<Escape> escapes;
    for (size_t i = 0; i < codes.size(); ++i) {
      const ScaleTable& table = tables[table_of[i]];
      if (table.symbol_of(codes[i]) >= table.first_escape()) escapes.push_back(escape_of(table, codes[i]));
    }
    const int order = cheapest_escape_order(escapes);
    const ByteVector bytes = write_escapes(escapes, order);
    for (int other = 0; other <= kMaxEscapeOrder; ++other)
      EXPECT_LE(bytes.size(), write_escapes(escapes, other).size());
    EscapeReader reader(bytes, order, 2147483646, kWhere);
    for (size_t i = 0; i < codes.size(); ++i) {
      const ScaleTable& table = tables[table_of[i]];
      const uint32_t symbol = table.symbol_of(codes[i]);
      if (symbol < table.first_escape()) continue;
      EXPECT_EQ(reader.read_code(table, symbol), codes[i]) << int{table_of[i]};
    }
    reader.finish();
  }
}

// One symbol for even codes and one for odd ones take half the distance: a bit less.
TEST(WeightEscapesTest, DistancesCountCodesOfTheSameSymbol) {
  const ScaleTable one = make_scale_tables(0, 1000)[12], set0 = make_scale_tables(0, 1000, 2)[12],
                   set1 = make_scale_tables(0, 1000, 2)[kScaleClasses + 12];
  ASSERT_EQ(one.reach, 4u);
  ASSERT_EQ(set0.reach, 4u);
  ASSERT_EQ(set1.reach, 3u);
  EXPECT_EQ(escape_of(one, 15).distance, 10u);
  EXPECT_EQ(escape_of(set0, 15).distance, 5u);   // after 5, 7, 9, 11, 13
  EXPECT_EQ(escape_of(set0, -14).distance, 4u);  // after -6, -8, -10, -12
  EXPECT_EQ(escape_of(set1, 15).distance, 5u);   // after 5, 7, 9, 11, 13: 4 is even
  EXPECT_EQ(escape_of(set1, -15).distance, 5u);  // after -5, ..., -13
  EXPECT_EQ(escape_of(set1, -6).distance, 0u);   // the first even one: -4 has a symbol
}

TEST(WeightEscapesTest, LargerCodesThanTheLargestAreRefused) {
  const ScaleTable table = make_scale_tables(0, 1000, 2)[12];
  for (uint32_t largest : {999u, 1000u})
    for (int32_t code : {998, 999, -999, 1000, -1000, 1001, -1001, 1002}) {
      const ByteVector bytes = write_escapes(std::vector{escape_of(table, code)}, 3);
      EscapeReader reader(bytes, 3, largest, kWhere);
      const uint32_t symbol = table.symbol_of(code);
      if (code_magnitude(code, 0) <= largest)
        EXPECT_EQ(reader.read_code(table, symbol), code);
      else
        EXPECT_THROW(reader.read_code(table, symbol), FormatError) << code << ", " << largest;
    }
}

}  // namespace
}  // namespace thimble::weight_escapes_test
