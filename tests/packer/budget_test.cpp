// budget_test.cpp: the limit itself fits, one byte more does not.
#include "packer/artifact.h"

#include <gtest/gtest.h>

namespace thimble::budget_test {
namespace {

TEST(BudgetTest, LimitIsInclusive) {
  EXPECT_TRUE(check_budget(15'900'000, 100'000, 16'000'000).fits);
  EXPECT_FALSE(check_budget(15'900'000, 100'001, 16'000'000).fits);
  EXPECT_EQ(check_budget(15'900'000, 100'001, 16'000'000).total_bytes, 16'000'001u);
  EXPECT_TRUE(check_budget(0, 0, 0).fits);
}

TEST(BudgetTest, OverflowDoesNotFit) {
  BudgetReport report = check_budget(UINT64_MAX, 1, UINT64_MAX - 1);
  EXPECT_FALSE(report.fits);
  EXPECT_EQ(report.total_bytes, UINT64_MAX);
}

}  // namespace
}  // namespace thimble::budget_test
