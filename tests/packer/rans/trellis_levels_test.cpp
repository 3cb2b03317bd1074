// trellis_levels_test.cpp: levels are those of the trellis, walked one column at a time.
#include <gtest/gtest.h>

#include "packer/rans/scale_fit.h"
#include "runtime/codes/trellis.h"
#include "tests/packer/layout/sample_codes.h"

namespace thimble::trellis_levels_test {
namespace {

TEST(TrellisLevelsTest, EveryColumnIsWalkedDown) {
  for (int bits = 2; bits <= kMaxTrellisBits; ++bits) {
    const uint64_t rows = 1030, columns = 7;  // two restarts
    const SampleCodes sample = trellis_codes(rows, columns, 5, 1, 1, bits);
    const CodeLevels levels = code_levels(sample.codes, rows, columns, bits);
    const Trellis trellis(bits);
    int64_t largest = 0;
    for (uint64_t k = 0; k < columns; ++k) {
      uint32_t state = 0;
      for (uint64_t r = 0; r < rows; ++r) {
        if (r % static_cast<uint64_t>(kTrellisRows) == 0) state = 0;
        const int32_t code = sample.codes[r * columns + k];
        const int64_t level = std::abs(Trellis::level(state, code));
        largest = std::max(largest, level / 2);
        ASSERT_EQ(levels.magnitudes[r * columns + k], level < kLevelCap ? level : kLevelCap + level % 2) << r;
        state = trellis.next(state, code);
      }
    }
    EXPECT_EQ(levels.largest_code, largest);
  }
}

TEST(TrellisLevelsTest, HugeCodesKeepTheirSet) {
  // 3 bits: an odd code in state 0 leads to state 2, then 1, whose set is 1.
  const std::vector<int32_t> codes = {2147483645, 0, -2147483646, 0, -2147483646, 2147483646};
  const CodeLevels levels = code_levels(codes, 6, 1, 3);
  EXPECT_EQ(levels.magnitudes[0], kLevelCap);
  EXPECT_EQ(levels.magnitudes[2], kLevelCap + 1);
  EXPECT_EQ(levels.largest_code, 2147483646u);
}

TEST(TrellisLevelsTest, WithoutATrellisLevelsAreMagnitudes) {
  const CodeLevels levels = code_levels(std::vector<int32_t>{0, -3, 511, 512, -2147483647}, 1, 5, 0);
  EXPECT_EQ(levels.magnitudes, (std::vector<uint16_t>{0, 3, 511, kLevelCap, kLevelCap}));
  EXPECT_EQ(levels.largest_code, 2147483647u);
}

}  // namespace
}  // namespace thimble::trellis_levels_test
