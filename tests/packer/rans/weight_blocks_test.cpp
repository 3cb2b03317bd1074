// weight_blocks_test.cpp: blocks have every element of the matrix once, and never too many.
#include "packer/rans/weight_blocks.h"

#include <gtest/gtest.h>

#include <vector>

namespace thimble::weight_blocks_test {
namespace {

void expect_all_once(uint64_t rows, uint64_t columns, bool trellis) {
  SCOPED_TRACE(::testing::Message() << rows << " x " << columns << (trellis ? ", trellis" : ""));
  const int lanes_log2 = BlockCut::lanes_log2_for(rows, columns, trellis);
  const BlockCut cut(rows, columns, trellis, lanes_log2);
  EXPECT_LE(uint64_t{1} << lanes_log2, cut.most_lanes());
  EXPECT_EQ(cut.blocks(), cut.bands() * cut.stripes());
  std::vector<int> seen(rows * columns);
  uint64_t begin = 0;
  for (uint64_t band = 0; band < cut.bands(); ++band) {
    EXPECT_EQ(cut.band_begin(band), begin);
    uint64_t elements = 0;
    for (uint64_t stripe = 0; stripe < cut.stripes(); ++stripe) {
      const WeightBlock block = cut.block(band, stripe);
      EXPECT_LE(block.elements(), kBlockSteps << lanes_log2);
      elements += block.elements();
      for (uint64_t i = 0; i < block.rows; ++i)
        for (uint64_t j = 0; j < block.width; ++j) ++seen.at(block.begin + i * block.stride + j);
      if (!trellis) continue;
      EXPECT_EQ(block.begin / columns, band * static_cast<uint64_t>(kTrellisRows));
      EXPECT_LE(block.begin % columns + block.width, columns);
      EXPECT_GE(block.width, cut.most_lanes());
    }
    EXPECT_EQ(cut.band_elements(band), elements);
    begin += elements;
  }
  EXPECT_EQ(seen, std::vector<int>(rows * columns, 1));
}

TEST(WeightBlocksTest, EveryElementIsInOneBlock) {
  for (uint64_t rows : {1, 2, 511, 512, 513, 1030})
    for (uint64_t columns : {1, 31, 32, 33, 1023, 1024, 1025, 2049, 5000})
      for (bool trellis : {false, true}) expect_all_once(rows, columns, trellis);
  expect_all_once(1, 100000, true);
  expect_all_once(100000, 1, true);
}

TEST(WeightBlocksTest, SmallMatricesHaveFewLanes) {
  EXPECT_EQ(BlockCut::lanes_log2_for(1, 1, true), 0);
  EXPECT_EQ(BlockCut::lanes_log2_for(512, 32, true), 0);
  EXPECT_EQ(BlockCut::lanes_log2_for(512, 33, true), 1);
  EXPECT_EQ(BlockCut::lanes_log2_for(512, 512, true), 4);
  EXPECT_EQ(BlockCut::lanes_log2_for(1792, 512, true), 4);   // three whole segments and a half
  EXPECT_EQ(BlockCut::lanes_log2_for(512, 1792, true), 5);   // two stripes
  EXPECT_EQ(BlockCut::lanes_log2_for(1792, 512, false), 5);  // not cut by a trellis
}

}  // namespace
}  // namespace thimble::weight_blocks_test
