// codec_test.cpp: every codec gives back what it was given, and refuses everything else with a FormatError.
#include "packer/codec.h"

#include <gtest/gtest.h>

#include <random>

namespace thimble {
namespace {

ByteVector random_bytes(size_t count, unsigned alphabet) {
  std::mt19937 random(5);
  ByteVector bytes;
  for (size_t i = 0; i < count; ++i) bytes.push_back(static_cast<std::byte>(random() % alphabet));
  return bytes;
}

class CodecTest : public testing::TestWithParam<const Codec*> {
 protected:
  const Codec& codec() { return *GetParam(); }
};

TEST_P(CodecTest, GivesBackWhatItWasGiven) {
  for (size_t count : {0, 1, 2, 255, 4096, 65535, 65536, 65537, 140000})
    for (unsigned alphabet : {1, 256}) {
      ByteVector raw = random_bytes(count, alphabet);
      ByteVector stored = codec().compress(raw);
      EXPECT_EQ(codec().decompress(stored, raw.size(), "test"), raw) << count << " of " << alphabet;
      EXPECT_EQ(codec().compress(raw), stored) << count << " of " << alphabet;
    }
}

TEST_P(CodecTest, SaysItsVersion) { EXPECT_NE(codec().version().find_first_of("0123456789"), std::string::npos); }

TEST_P(CodecTest, RejectsAnotherSize) {
  for (size_t count : {1, 100, 100000}) {
    ByteVector stored = codec().compress(random_bytes(count, 9));
    EXPECT_THROW(codec().decompress(stored, count - 1, "test"), FormatError);
    EXPECT_THROW(codec().decompress(stored, count + 1, "test"), FormatError);
  }
}

TEST_P(CodecTest, RejectsEveryTruncation) {
  ByteVector raw = random_bytes(300, 9);
  ByteVector stored = codec().compress(raw);
  for (size_t kept = 0; kept < stored.size(); ++kept)
    EXPECT_THROW(codec().decompress(Bytes(stored).first(kept), raw.size(), "test"), FormatError) << kept;
}

TEST_P(CodecTest, RejectsBytesAfterTheEnd) {
  ByteVector raw = random_bytes(300, 9);
  ByteVector stored = codec().compress(raw);
  stored.push_back(std::byte{0});
  EXPECT_THROW(codec().decompress(stored, raw.size(), "test"), FormatError);
}

TEST_P(CodecTest, NeverEscapesWithAnythingButAFormatError) {
  ByteVector raw = random_bytes(2000, 9);
  const ByteVector stored = codec().compress(raw);
  for (size_t i = 0; i < stored.size(); ++i) {
    ByteVector damaged = stored;
    damaged[i] ^= std::byte{0x55};
    try {
      EXPECT_EQ(codec().decompress(damaged, raw.size(), "test").size(), raw.size());
    } catch (const FormatError&) {
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CodecTest, testing::ValuesIn(all_codecs().begin(), all_codecs().end()),
                         [](const auto& test) { return std::string(test.param->name()); });

TEST(CodecTableTest, NumbersAreThoseOfTheFormat) {
  EXPECT_EQ(find_codec(0)->name(), "none");
  EXPECT_EQ(find_codec(1)->name(), "brotli");
  EXPECT_EQ(find_codec(2)->name(), "zstd");
  EXPECT_EQ(find_codec(3)->name(), "xz");
  EXPECT_EQ(find_codec(4), nullptr);
  EXPECT_EQ(find_codec(255), nullptr);
}

}  // namespace
}  // namespace thimble
