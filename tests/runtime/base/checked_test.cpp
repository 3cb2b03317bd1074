// checked_test.cpp: sizes from files never wrap.
#include "runtime/base/checked.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "tests/runtime/base/error_matcher.h"

namespace thimble::checked_test {
namespace {

constexpr uint64_t kLargest = std::numeric_limits<uint64_t>::max();

TEST(Checked, MultipliesUpToTheLargestValue) {
  EXPECT_EQ(mul_or_throw(0, kLargest, "x"), 0u);
  EXPECT_EQ(mul_or_throw(1, kLargest, "x"), kLargest);
  EXPECT_EQ(mul_or_throw(uint64_t{1} << 32, (uint64_t{1} << 32) - 1, "x"), kLargest - 0xffffffffu);
  expect_error<FormatError>([] { mul_or_throw(uint64_t{1} << 32, uint64_t{1} << 32, "file: tensor 'a'"); },
                            {"file: tensor 'a': 4294967296 x 4294967296 overflows 64 bits"});
  EXPECT_THROW(mul_or_throw(kLargest, 2, "x"), FormatError);
}

TEST(Checked, AddsUpToTheLargestValue) {
  EXPECT_EQ(add_or_throw(kLargest - 1, 1, "x"), kLargest);
  expect_error<FormatError>([] { add_or_throw(kLargest, 1, "file"); },
                            {"file: 18446744073709551615 + 1 overflows 64 bits"});
}

uint64_t count_of(std::vector<int64_t> shape) { return element_count_or_throw(shape, "file: tensor 'a'"); }

TEST(Checked, CountsElements) {
  EXPECT_EQ(count_of({}), 1u);
  EXPECT_EQ(count_of({7}), 7u);
  EXPECT_EQ(count_of({2, 3, 4}), 24u);
  EXPECT_EQ(count_of({5, 0, 9}), 0u);
  EXPECT_EQ(count_of({int64_t{1} << 62, 2}), uint64_t{1} << 63);
  expect_error<FormatError>([] { count_of({int64_t{1} << 62, 4}); }, {"tensor 'a'", "overflows"});
  expect_error<FormatError>([] { count_of({3, -1}); }, {"tensor 'a'", "dimension -1, must not be negative"});
}

}  // namespace
}  // namespace thimble::checked_test
