// nvfp4_scale_layout_test.cpp: every source scale at its place, over all shapes; and that the check can fail.
#include "runtime/codes/nvfp4_scale_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace thimble::nvfp4_scale_layout_test {
namespace {

TEST(Nvfp4ScaleLayout, AllShapesWithoutAnError) {
  const ScaleLayoutCheck check = check_scale_layouts();
  EXPECT_EQ(check.shapes, 13 * 65);
  EXPECT_EQ(check.errors, 0) << "first at " << check.first_rows << " x " << check.first_columns;
}

TEST(Nvfp4ScaleLayout, OddShapesWithoutAnError) {
  for (int64_t rows : {1, 31, 32, 33, 127, 128, 129, 255, 257})
    for (int64_t columns : {1, 15, 16, 17, 63, 64, 65, 1024}) EXPECT_EQ(scale_layout_errors(rows, columns), 0);
}

// Places written out from the picture in the header.
TEST(Nvfp4ScaleLayout, KnownPlaces) {
  EXPECT_EQ(scale_layout_index(0, 3, 8), 3);
  EXPECT_EQ(scale_layout_index(1, 0, 8), 16);
  EXPECT_EQ(scale_layout_index(32, 0, 8), 4);
  EXPECT_EQ(scale_layout_index(97, 2, 8), 30);
  EXPECT_EQ(scale_layout_index(127, 3, 8), 511);
  EXPECT_EQ(scale_layout_index(0, 4, 8), 512);
  EXPECT_EQ(scale_layout_index(128, 0, 8), 1024);
  EXPECT_EQ(scale_layout_index(128, 0, 5), 1024) << "a started atom counts";
}

TEST(Nvfp4ScaleLayout, PadsWholeAtomsWithZero) {
  EXPECT_EQ(scale_layout_bytes(1, 1), 512);
  EXPECT_EQ(scale_layout_bytes(129, 5), 4 * 512);
  std::vector<uint8_t> scales(129 * 5, 9);
  std::vector<uint8_t> arranged = arrange_scales(scales, 129, 5);
  ASSERT_EQ(arranged.size(), 4u * 512);
  EXPECT_EQ(std::ranges::count(arranged, 9), 129 * 5);
  EXPECT_EQ(std::ranges::count(arranged, 0), 4 * 512 - 129 * 5);
  EXPECT_EQ(restore_scales(arranged, 129, 5), scales);
}

TEST(Nvfp4ScaleLayout, PlacesAreDistinct) {
  std::set<int64_t> places;
  for (int64_t mn = 0; mn < 300; ++mn)
    for (int64_t sf = 0; sf < 9; ++sf) {
      const int64_t place = scale_layout_index(mn, sf, 9);
      EXPECT_LT(place, scale_layout_bytes(300, 9));
      EXPECT_TRUE(places.insert(place).second);
    }
}

}  // namespace
}  // namespace thimble::nvfp4_scale_layout_test
