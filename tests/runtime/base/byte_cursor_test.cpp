// byte_cursor_test.cpp: little-endian reads and writes, and every way to run off the end.
#include "runtime/base/byte_cursor.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/runtime/base/error_matcher.h"

namespace thimble::byte_cursor_test {
namespace {

ByteVector bytes_of(std::initializer_list<int> values) {
  ByteVector bytes;
  for (int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

TEST(ByteCursor, ReadsLittleEndian) {
  ByteVector bytes =
      bytes_of({0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x8f});
  ByteCursor cursor(bytes, "file");
  EXPECT_EQ(cursor.read<uint8_t>("a"), 0x01);
  EXPECT_EQ(cursor.read<uint16_t>("b"), 0x0302);
  EXPECT_EQ(cursor.read<uint32_t>("c"), 0x07060504u);
  EXPECT_EQ(cursor.read<uint64_t>("d"), 0x8f0e0d0c0b0a0908u);
  EXPECT_TRUE(cursor.at_end());
}

TEST(ByteCursor, ReadsSignedValues) {
  ByteVector bytes = bytes_of({0xff, 0xfe, 0xff, 0x00, 0x00, 0x00, 0x80});
  ByteCursor cursor(bytes, "file");
  EXPECT_EQ(cursor.read<int8_t>("a"), -1);
  EXPECT_EQ(cursor.read<int16_t>("b"), -2);
  EXPECT_EQ(cursor.read<int32_t>("c"), std::numeric_limits<int32_t>::min());
}

template <typename T>
void expect_round_trip() {
  for (T value : {std::numeric_limits<T>::min(), T(0), T(1), T(0x5a), std::numeric_limits<T>::max()}) {
    ByteVector bytes;
    append_little_endian(bytes, value);
    EXPECT_EQ(bytes.size(), sizeof(T));
    EXPECT_EQ(ByteCursor(bytes, "file").read<T>("value"), value);
  }
}

TEST(ByteCursor, ReadsWhatAppendWrote) {
  expect_round_trip<int8_t>();
  expect_round_trip<uint8_t>();
  expect_round_trip<int16_t>();
  expect_round_trip<uint16_t>();
  expect_round_trip<int32_t>();
  expect_round_trip<uint32_t>();
  expect_round_trip<int64_t>();
  expect_round_trip<uint64_t>();
}

TEST(ByteCursor, TakeGivesViewsAndAdvances) {
  ByteVector bytes;
  append_bytes(bytes, as_bytes_of("abcdef"));
  ByteCursor cursor(bytes, "file");
  EXPECT_EQ(cursor.take_text(2, "head"), "ab");
  EXPECT_EQ(cursor.take(3, "body").data(), bytes.data() + 2);
  EXPECT_EQ(cursor.position(), 5u);
  EXPECT_EQ(cursor.remaining(), 1u);
  EXPECT_TRUE(cursor.take(0, "nothing").empty());
}

TEST(ByteCursor, TruncationNamesPlaceAndObject) {
  ByteVector bytes = bytes_of({1, 2, 3});
  ByteCursor cursor(bytes, "model.thmb", 100);
  cursor.read<uint8_t>("version");
  expect_error<FormatError>([&] { cursor.read<uint32_t>("header length"); },
                            {"model.thmb", "byte 101", "header length needs 4 B", "2 B remain"});
  // A failed read consumes nothing.
  EXPECT_EQ(cursor.position(), 1u);
  EXPECT_EQ(cursor.read<uint16_t>("rest"), 0x0302);
  expect_error<FormatError>([&] { cursor.read<uint8_t>("more"); }, {"byte 103", "0 B remain"});
}

TEST(ByteCursor, HugeCountsDoNotWrapAround) {
  ByteVector bytes = bytes_of({1, 2, 3});
  ByteCursor cursor(bytes, "file");
  cursor.read<uint8_t>("first");
  expect_error<FormatError>([&] { cursor.take(std::numeric_limits<uint64_t>::max(), "blob"); },
                            {"blob needs 18446744073709551615 B"});
}

TEST(ByteCursor, SeeksWithinTheBytes) {
  ByteVector bytes = bytes_of({1, 2, 3});
  ByteCursor cursor(bytes, "file");
  cursor.seek(2, "table");
  EXPECT_EQ(cursor.read<uint8_t>("value"), 3);
  cursor.seek(3, "end");
  EXPECT_TRUE(cursor.at_end());
  cursor.seek(0, "start");
  EXPECT_EQ(cursor.remaining(), 3u);
  expect_error<FormatError>([&] { cursor.seek(4, "directory"); }, {"directory at byte 4", "the file has 3 B"});
}

TEST(ByteCursor, AnEmptyFileIsAtItsEnd) {
  ByteCursor cursor({}, "empty");
  EXPECT_TRUE(cursor.at_end());
  EXPECT_THROW(cursor.read<uint8_t>("anything"), FormatError);
}

}  // namespace
}  // namespace thimble::byte_cursor_test
