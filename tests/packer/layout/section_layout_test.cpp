// section_layout_test.cpp: every layout is reversible, has the size it says, and accepts nothing it would not write.
#include "packer/layout/section_layout.h"

#include <gtest/gtest.h>

#include <random>

#include "runtime/codes/quantized_model.h"

namespace thimble::section_layout_test {
namespace {

ByteVector bytes_of(std::initializer_list<int> values) {
  ByteVector bytes;
  for (int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

ContentShape codes_shape(uint64_t rows, uint64_t columns, int max_code) {
  return {SectionKind::kCodes, rows, columns, 1, max_code};
}

ByteVector random_codes(const ContentShape& shape) {
  std::mt19937 random(3);
  ByteVector codes;
  for (uint64_t i = 0; i < shape.elements(); ++i)
    codes.push_back(static_cast<std::byte>(static_cast<int>(random() % (2 * shape.max_code + 1)) - shape.max_code));
  return codes;
}

void expect_reversible(const ContentShape& shape, const ByteVector& content) {
  for (LayoutId layout : allowed_layouts(shape)) {
    ByteVector laid_out = apply_layout(layout, shape, content);
    EXPECT_EQ(laid_out.size(), laid_out_bytes(layout, shape)) << layout_name(layout);
    EXPECT_LE(laid_out.size(), shape.content_bytes()) << layout_name(layout);
    EXPECT_EQ(undo_layout(layout, shape, laid_out, "test"), content) << layout_name(layout);
  }
}

TEST(SectionLayoutTest, CodesOfEveryWidthAndShapeComeBack) {
  for (int max_code : {1, 2, 3, 4, 5, 6, 7, 8, 15, 16, 31, 63, 64, 100, 127})
    for (auto [rows, columns] : {std::pair{1, 1}, {1, 17}, {17, 1}, {3, 5}, {8, 8}, {33, 31}}) {
      ContentShape shape = codes_shape(static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), max_code);
      SCOPED_TRACE(::testing::Message() << rows << " x " << columns << ", max_code " << max_code);
      expect_reversible(shape, random_codes(shape));
      expect_reversible(shape, ByteVector(shape.elements(), std::byte{0}));
      expect_reversible(shape, ByteVector(shape.elements(), static_cast<std::byte>(max_code)));
      expect_reversible(shape, ByteVector(shape.elements(), static_cast<std::byte>(-max_code)));
    }
}

TEST(SectionLayoutTest, FloatsComeBack) {
  for (uint64_t element_bytes : {1, 2, 4, 8})
    for (uint64_t elements : {1, 2, 7}) {
      ByteVector content;
      for (uint64_t i = 0; i < elements * element_bytes; ++i) content.push_back(static_cast<std::byte>(i));
      expect_reversible({SectionKind::kRaw, 1, elements, element_bytes}, content);
    }
}

TEST(SectionLayoutTest, BytesAreThoseOfTheFormat) {
  ContentShape shape = codes_shape(2, 3, 3);
  ByteVector codes = bytes_of({-3, 0, 3, 1, -1, 2});
  EXPECT_EQ(apply_layout(LayoutId::kPlain, shape, codes), codes);
  EXPECT_EQ(apply_layout(LayoutId::kColumns, shape, codes), bytes_of({-3, 1, 0, -1, 3, 2}));
  // Offsets 0 3 6 4 2 5 in three bits each, lowest first.
  EXPECT_EQ(apply_layout(LayoutId::kBits, shape, codes), bytes_of({0b10'011'000, 0b1'010'100'1, 0b10}));
  EXPECT_EQ(apply_layout(LayoutId::kDigits, shape, codes), bytes_of({0 + 7 * 3, 6 + 7 * 4, 2 + 7 * 5}));
  EXPECT_EQ(apply_layout(LayoutId::kDigitColumns, shape, codes), bytes_of({0 + 7 * 4, 3 + 7 * 2, 6 + 7 * 5}));
  EXPECT_EQ(apply_layout(LayoutId::kPlanes, {SectionKind::kRaw, 1, 2, 2}, bytes_of({1, 2, 3, 4})),
            bytes_of({1, 3, 2, 4}));
}

TEST(SectionLayoutTest, DigitsPerByteFillIt) {
  EXPECT_EQ(digits_per_byte(1), 5);  // 243
  EXPECT_EQ(digits_per_byte(2), 3);  // 125
  EXPECT_EQ(digits_per_byte(3), 2);  // 49
  EXPECT_EQ(digits_per_byte(7), 2);  // 225
  EXPECT_EQ(digits_per_byte(8), 1);
}

TEST(SectionLayoutTest, WideCodesHaveNoDigits) {
  for (LayoutId layout : allowed_layouts(codes_shape(2, 2, 8))) {
    EXPECT_NE(layout, LayoutId::kDigits);
    EXPECT_NE(layout, LayoutId::kDigitColumns);
  }
}

TEST(SectionLayoutTest, BitsRejectCodesOutOfRangeAndStrayBits) {
  ContentShape shape = codes_shape(1, 2, 3);
  EXPECT_THROW(undo_layout(LayoutId::kBits, shape, bytes_of({0b111}), "test"), FormatError);
  EXPECT_THROW(undo_layout(LayoutId::kBits, shape, bytes_of({0b0100'0000}), "test"), FormatError);
  EXPECT_EQ(undo_layout(LayoutId::kBits, shape, bytes_of({0b110'110}), "test"), bytes_of({3, 3}));
}

TEST(SectionLayoutTest, DigitsRejectBytesBeyondTheirDigits) {
  ContentShape shape = codes_shape(1, 3, 7);  // two digits, then one
  EXPECT_EQ(undo_layout(LayoutId::kDigits, shape, bytes_of({224, 14}), "test"), bytes_of({7, 7, 7}));
  EXPECT_THROW(undo_layout(LayoutId::kDigits, shape, bytes_of({225, 14}), "test"), FormatError);
  EXPECT_THROW(undo_layout(LayoutId::kDigits, shape, bytes_of({224, 15}), "test"), FormatError);
}

}  // namespace
}  // namespace thimble::section_layout_test
