// layout_choice_test.cpp: the statistic finds the direction in which codes are predictable.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "packer/container/section_packer.h"

namespace thimble::layout_choice_test {
namespace {

constexpr uint64_t kRows = 136;
constexpr uint64_t kColumns = 128;

// Codes whose spread depends on the row (or on the column) alone.
ByteVector spread_codes(int max_code, bool spread_by_column) {
  std::mt19937 random(11);
  ByteVector codes;
  for (uint64_t r = 0; r < kRows; ++r)
    for (uint64_t c = 0; c < kColumns; ++c) {
      int bound = 1 + static_cast<int>((spread_by_column ? c : r) * 37 % static_cast<uint64_t>(max_code));
      codes.push_back(static_cast<std::byte>(static_cast<int>(random() % (2 * bound + 1)) - bound));
    }
  return codes;
}

TEST(LayoutChoiceTest, DirectionFollowsTheSpread) {
  for (int max_code : {15, 31}) {
    ContentShape shape{SectionKind::kCodes, kRows, kColumns, 1, max_code};
    EXPECT_EQ(layout_candidates(CodecId::kBrotli, shape, spread_codes(max_code, false)), std::vector{LayoutId::kPlain});
    EXPECT_EQ(layout_candidates(CodecId::kBrotli, shape, spread_codes(max_code, true)),
              std::vector{LayoutId::kColumns});
  }
  ContentShape narrow{SectionKind::kCodes, kRows, kColumns, 1, 7};
  EXPECT_EQ(layout_candidates(CodecId::kZstd, narrow, spread_codes(7, false)),
            (std::vector{LayoutId::kPlain, LayoutId::kDigits}));
  EXPECT_EQ(layout_candidates(CodecId::kZstd, narrow, spread_codes(7, true)),
            (std::vector{LayoutId::kColumns, LayoutId::kDigitColumns}));
}

size_t brotli_bytes(const ContentShape& shape, const ByteVector& codes, LayoutId layout) {
  return pack_section_as(shape, codes, layout, CodecId::kBrotli).stored.size();
}

// The smallest of all layouts is among the candidates.
TEST(LayoutChoiceTest, SmallestLayoutIsACandidate) {
  for (int max_code : {3, 7, 31})
    for (bool by_column : {false, true}) {
      ContentShape shape{SectionKind::kCodes, kRows, kColumns, 1, max_code};
      const ByteVector codes = spread_codes(max_code, by_column);
      size_t smallest = SIZE_MAX;
      for (LayoutId layout : layout_candidates(CodecId::kBrotli, shape, codes))
        smallest = std::min(smallest, brotli_bytes(shape, codes, layout));
      for (LayoutId layout : allowed_layouts(shape))
        EXPECT_LE(smallest, brotli_bytes(shape, codes, layout))
            << layout_name(layout) << ", max_code " << max_code << ", by column " << by_column;
    }
}

TEST(LayoutChoiceTest, ConstantCodesCostNothingInEitherDirection) {
  ByteVector zeros(kRows * kColumns, std::byte{0});
  EXPECT_EQ(adaptive_code_bits(zeros, kRows, kColumns, false), 0);
  EXPECT_EQ(adaptive_code_bits(zeros, kRows, kColumns, true), 0);
}

// Two equally likely codes: one bit each, whatever the histogram's context.
TEST(LayoutChoiceTest, StatisticIsInBits) {
  std::mt19937 random(2);
  ByteVector codes;
  for (uint64_t i = 0; i < kRows * kColumns; ++i) codes.push_back(static_cast<std::byte>(random() & 1 ? 5 : -5));
  double bits = adaptive_code_bits(codes, kRows, kColumns, false);
  auto count = static_cast<double>(codes.size());
  EXPECT_LE(bits, count);
  EXPECT_NEAR(bits, count, 4 * std::sqrt(count));
}

TEST(LayoutChoiceTest, WithoutCompressionBitsAreSmallest) {
  ContentShape shape{SectionKind::kCodes, kRows, kColumns, 1, 15};
  EXPECT_EQ(layout_candidates(CodecId::kNone, shape, spread_codes(15, true)), std::vector{LayoutId::kBits});
}

}  // namespace
}  // namespace thimble::layout_choice_test
