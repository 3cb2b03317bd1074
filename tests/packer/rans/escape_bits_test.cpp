// escape_bits_test.cpp: numbers of every size come back, in the length that was promised.
#include <gtest/gtest.h>

#include "packer/rans/weight_escapes.h"

namespace thimble::escape_bits_test {
namespace {

const std::string kWhere = "test";

TEST(EscapeBitsTest, EveryOrderGivesBackWhatWasWritten) {
  const uint32_t distances[] = {0, 1, 2, 3, 4, 7, 8, 1000, 65535, 65536, 2147483646, 2147483647, UINT32_MAX};
  for (int order = 0; order <= kMaxEscapeOrder; ++order) {
    std::vector<Escape> escapes;
    uint64_t bits = 0;
    for (uint32_t distance : distances)
      for (bool negative : {false, true}) {
        escapes.push_back({distance, negative});
        bits += escape_length_bits(distance, order);
      }
    const ByteVector bytes = write_escapes(escapes, order);
    EXPECT_EQ(bytes.size(), (bits + 7) / 8) << order;
    EscapeReader reader(bytes, order, 2147483647, kWhere);
    for (uint32_t distance : distances)
      for (bool negative : {false, true}) {
        const Escape escape = reader.read(UINT32_MAX);
        EXPECT_EQ(escape.distance, distance) << order;
        EXPECT_EQ(escape.negative, negative) << order;
      }
    reader.finish();
  }
}

TEST(EscapeBitsTest, BitsAreThoseOfTheFormat) {
  const std::vector<Escape> escapes = {{0, false},  // u = 2 = 10b: 1, 0, +
                                       {3, true}};  // u = 5 = 101b: 0, 1, 1, 0, -
  EXPECT_EQ(write_escapes(escapes, 1), (ByteVector{std::byte{0b1011'0001}}));
}

TEST(EscapeBitsTest, RefusesWhatTheWriterDoesNotWrite) {
  const ByteVector zeros(20), ones(1, std::byte{0xff}), nothing;
  EXPECT_THROW(EscapeReader(zeros, 0, 2147483647, kWhere).read(UINT32_MAX), FormatError);  // no end in sight
  EXPECT_THROW(EscapeReader(nothing, 0, 2147483647, kWhere).read(5), FormatError);
  EXPECT_THROW(EscapeReader(ones, 8, 2147483647, kWhere).read(UINT32_MAX), FormatError);  // ends within the low bits
  EXPECT_THROW(EscapeReader(ones, 3, 2147483647, kWhere).read(6), FormatError);           // 7 is too large
  EXPECT_THROW(EscapeReader(ones, 0, 2147483647, kWhere).finish(), FormatError);          // a byte left over
  EscapeReader partly(ones, 1, 2147483647, kWhere);
  partly.read(9);
  EXPECT_THROW(partly.finish(), FormatError);  // unused bits that are not zero
}

}  // namespace
}  // namespace thimble::escape_bits_test
