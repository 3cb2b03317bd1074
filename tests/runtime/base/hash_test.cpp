// hash_test.cpp: XXH3-64 against the values of xxHash's own self-test (its sanity_test.c), and what Hasher adds.
#include "runtime/base/hash.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace thimble::hash_test {
namespace {

// The buffer that xxHash's published values are for: the top bytes of a multiplicative sequence.
ByteVector sanity_buffer(size_t count) {
  ByteVector bytes;
  uint64_t generator = 2654435761u;
  for (size_t i = 0; i < count; ++i) {
    bytes.push_back(static_cast<std::byte>(generator >> 56));
    generator *= 11400714785074694797u;
  }
  return bytes;
}

struct Vector {
  size_t count;
  uint64_t hash;
};

// One value per code path of XXH3: lengths 1-3, 4-8, 9-16, 17-128, 129-240, and long inputs on and off block ends.
constexpr Vector kVectors[] = {
    {0, 0x2D06800538D394C2},    {1, 0xC44BDFF4074EECDB},   {6, 0x27B56A84CD2D7325},    {12, 0xA713DAF0DFBB77E7},
    {24, 0xA3FE70BF9D3510EB},   {48, 0x397DA259ECBA1F11},  {80, 0xBCDEFBBB2C47C90A},   {195, 0xCD94217EE362EC3A},
    {403, 0xCDEB804D65C6DEA4},  {512, 0x617E49599013CB6B}, {2048, 0xDD59E2C3A5F038E0}, {2240, 0x6E73A90539CF2948},
    {2367, 0xCB37AEB9E5D361ED},
};

TEST(Hash, MatchesPublishedValues) {
  for (const Vector& vector : kVectors) EXPECT_EQ(xxh3(sanity_buffer(vector.count)), vector.hash) << vector.count;
  EXPECT_EQ(xxh3(as_bytes_of("a")), 0xE6C632B61E964E1Fu);
  EXPECT_EQ(xxh3(as_bytes_of("abc")), 0x78AF5F94892F3950u);
}

TEST(Hash, IncrementalEqualsWhole) {
  ByteVector bytes = sanity_buffer(2367);
  for (size_t piece : {size_t{1}, size_t{7}, size_t{64}, size_t{1000}}) {
    Hasher hasher;
    for (size_t at = 0; at < bytes.size(); at += piece)
      hasher.add(Bytes(bytes).subspan(at, std::min(piece, bytes.size() - at)));
    EXPECT_EQ(hasher.digest(), 0xCB37AEB9E5D361EDu) << piece;
  }
}

TEST(Hash, DigestDoesNotDisturbTheState) {
  Hasher hasher;
  hasher.add(as_bytes_of("ab"));
  hasher.digest();
  hasher.add(as_bytes_of("c"));
  EXPECT_EQ(hasher.digest(), 0x78AF5F94892F3950u);
}

TEST(Hash, TextsKeepTheirBorders) {
  auto of = [](std::string_view a, std::string_view b) { return Hasher().add(a).add(b).digest(); };
  EXPECT_NE(of("ab", "c"), of("a", "bc"));
  EXPECT_NE(of("", "abc"), of("abc", ""));
  EXPECT_EQ(of("ab", "c"), of("ab", "c"));
}

TEST(Hash, NumbersAreLittleEndianBytes) {
  ByteVector bytes;
  append_little_endian(bytes, uint64_t{0x0123456789abcdef});
  EXPECT_EQ(Hasher().add(uint64_t{0x0123456789abcdef}).digest(), xxh3(bytes));
}

TEST(Hash, HexHasSixteenDigits) {
  EXPECT_EQ(hex64(0), "0000000000000000");
  EXPECT_EQ(hex64(0xAB), "00000000000000ab");
  EXPECT_EQ(hex64(~uint64_t{0}), "ffffffffffffffff");
}

}  // namespace
}  // namespace thimble::hash_test
