// codec_test.cpp: every codec gives back what it was given, and refuses everything else with a FormatError.
#include "packer/codecs/codec.h"

#include <gtest/gtest.h>

#include <random>

namespace thimble::codec_test {
namespace {

ByteVector random_bytes(size_t count, unsigned alphabet) {
  std::mt19937 random(5);
  ByteVector bytes;
  for (size_t i = 0; i < count; ++i) bytes.push_back(static_cast<std::byte>(random() % alphabet));
  return bytes;
}

class CodecTest : public ::testing::TestWithParam<CodecId> {
 protected:
  const Codec& codec() { return codec_of(GetParam()); }
  bool for_codes_only() { return !codec_takes(codec().id, {SectionKind::kRaw, 1, 1}, LayoutId::kPlain); }

  // One row of codes: the contents that every codec takes.
  ByteVector compress(const ByteVector& raw) {
    return codec().compress(raw, {SectionKind::kCodes, 1, raw.size(), 1, 127});
  }
  ByteVector decompress(Bytes stored, uint64_t raw_bytes) {
    return thimble::decompress(codec().id, stored, raw_bytes, {SectionKind::kCodes, 1, raw_bytes, 1, 127}, "test");
  }
};

TEST_P(CodecTest, GivesBackWhatItWasGiven) {
  for (size_t count : {0, 1, 2, 255, 4096, 65535, 65536, 65537, 140000})
    for (unsigned alphabet : {1, 128, 256}) {
      if (for_codes_only() && (count == 0 || alphabet == 256)) continue;
      ByteVector raw = random_bytes(count, alphabet);
      ByteVector stored = compress(raw);
      EXPECT_EQ(decompress(stored, raw.size()), raw) << count << " of " << alphabet;
      EXPECT_EQ(compress(raw), stored) << count << " of " << alphabet;
    }
}

// Stepped codes: more than windows and dictionaries hold.
TEST_P(CodecTest, TakesSectionsLongerThanItsWindow) {
  const ContentShape shape{SectionKind::kCodes, 1, (kMaxSectionContentBytes + 40) / 4, 4};
  ByteVector raw(shape.content_bytes());
  for (size_t i = 0; i < raw.size(); i += 4) raw[i] = static_cast<std::byte>(i / 400 % 3);
  EXPECT_EQ(thimble::decompress(codec().id, codec().compress(raw, shape), raw.size(), shape, "test"), raw);
}

TEST_P(CodecTest, SaysItsVersion) {
  EXPECT_NE(codec().version().find_first_of("0123456789"), std::string::npos);
  EXPECT_EQ(codec().version().find('.') == std::string::npos, codec().id == CodecId::kNone);
}

TEST_P(CodecTest, RejectsAnotherSize) {
  for (size_t count : {2, 100, 100000}) {
    ByteVector stored = compress(random_bytes(count, 9));
    EXPECT_THROW(decompress(stored, count - 1), FormatError);
    EXPECT_THROW(decompress(stored, count + 1), FormatError);
  }
}

TEST_P(CodecTest, RejectsEveryTruncation) {
  ByteVector raw = random_bytes(300, 9);
  ByteVector stored = compress(raw);
  for (size_t kept = 0; kept < stored.size(); ++kept)
    EXPECT_THROW(decompress(Bytes(stored).first(kept), raw.size()), FormatError) << kept;
}

TEST_P(CodecTest, RejectsBytesAfterTheEnd) {
  ByteVector raw = random_bytes(300, 9);
  ByteVector stored = compress(raw);
  stored.push_back(std::byte{0});
  EXPECT_THROW(decompress(stored, raw.size()), FormatError);
}

TEST_P(CodecTest, NeverEscapesWithAnythingButAFormatError) {
  ByteVector raw = random_bytes(2000, 9);
  const ByteVector stored = compress(raw);
  for (size_t i = 0; i < stored.size(); ++i) {
    ByteVector damaged = stored;
    damaged[i] ^= std::byte{0x55};
    try {
      EXPECT_EQ(decompress(damaged, raw.size()).size(), raw.size());
    } catch (const FormatError&) {
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CodecTest,
                         ::testing::Values(CodecId::kNone, CodecId::kBrotli, CodecId::kZstd, CodecId::kXz,
                                           CodecId::kRans),
                         [](const auto& test) { return std::string(codec_name(test.param)); });

TEST(CodecTableTest, NumbersAreThoseOfTheFormat) {
  const char* names[] = {"none", "brotli", "zstd", "xz", "rans"};
  ASSERT_EQ(all_codecs().size(), std::size(names));
  for (size_t number = 0; number < std::size(names); ++number) {
    EXPECT_EQ(all_codecs()[number].name(), names[number]);
    EXPECT_EQ(static_cast<size_t>(all_codecs()[number].id), number);
  }
}

TEST(CodecTableTest, OnlyRansIsForPlainCodesOnly) {
  const ContentShape codes{SectionKind::kCodes, 2, 2, 1, 15}, scales{SectionKind::kScales, 1, 2, 2};
  for (const Codec& codec : all_codecs()) {
    EXPECT_TRUE(codec_takes(codec.id, codes, LayoutId::kPlain)) << codec.name();
    EXPECT_EQ(codec_takes(codec.id, codes, LayoutId::kColumns), codec.id != CodecId::kRans) << codec.name();
    EXPECT_EQ(codec_takes(codec.id, scales, LayoutId::kPlain), codec.id != CodecId::kRans) << codec.name();
  }
}

}  // namespace
}  // namespace thimble::codec_test
