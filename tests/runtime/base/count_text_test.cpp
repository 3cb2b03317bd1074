// count_text_test.cpp: digits in groups, nouns in singular and plural.
#include "runtime/base/count_text.h"

#include <gtest/gtest.h>

#include <limits>

namespace thimble::count_text_test {
namespace {

TEST(CountText, DigitsComeInGroupsOfThree) {
  EXPECT_EQ(count_text(0), "0");
  EXPECT_EQ(count_text(999), "999");
  EXPECT_EQ(count_text(1000), "1,000");
  EXPECT_EQ(count_text(29'951'068), "29,951,068");
  EXPECT_EQ(count_text(-999), "-999");
  EXPECT_EQ(count_text(-1000), "-1,000");
  EXPECT_EQ(count_text(std::numeric_limits<int64_t>::min()), "-9,223,372,036,854,775,808");
  EXPECT_EQ(count_text(std::numeric_limits<uint64_t>::max()), "18,446,744,073,709,551,615");
}

TEST(CountText, OneIsSingular) {
  EXPECT_EQ(counted(1, "token"), "1 token");
  EXPECT_EQ(counted(0, "token"), "0 tokens");
  EXPECT_EQ(counted(2, "token"), "2 tokens");
  EXPECT_EQ(counted(21'454, "target"), "21,454 targets");
  EXPECT_EQ(counted(1, "entry", "entries"), "1 entry");
  EXPECT_EQ(counted(3, "entry", "entries"), "3 entries");
}

}  // namespace
}  // namespace thimble::count_text_test
