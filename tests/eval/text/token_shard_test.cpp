// token_shard_test.cpp: shards written and read again, and every way to damage one.
#include "eval/text/token_shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "runtime/base/atomic_file.h"
#include "runtime/base/file.h"
#include "tests/support/test_files.h"

namespace thimble::token_shard_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ShardFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = std::string("thimble_shard_") + ::testing::UnitTest::GetInstance()->current_test_info()->name();
    folder_ = std::filesystem::temp_directory_path() / name;
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& name, const std::vector<Token>& tokens,
                    int64_t vocab_size = kShard16Vocabulary) const {
    write_shard(path(name), tokens, vocab_size);
    return path(name);
  }
  std::filesystem::path folder_;
};

// Written by hand, as llm.c does.
ByteVector shard_bytes(const std::vector<Token>& tokens, const ShardFormat& format = kShard16) {
  ByteVector bytes;
  for (int32_t word : {format.magic, format.version, static_cast<int32_t>(tokens.size())})
    append_little_endian(bytes, word);
  bytes.resize(1024);
  for (Token token : tokens) {
    if (format.token_bytes == 2)
      append_little_endian(bytes, static_cast<uint16_t>(token));
    else
      append_little_endian(bytes, static_cast<uint32_t>(token));
  }
  return bytes;
}

class ShardOfEachWidth : public ::testing::TestWithParam<ShardFormat> {
 protected:
  ByteVector shard(const std::vector<Token>& tokens) const { return shard_bytes(tokens, GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Formats, ShardOfEachWidth, ::testing::Values(kShard16, kShard32),
                         [](const auto& test) { return "Bytes" + std::to_string(test.param.token_bytes); });

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST_F(ShardFile, WhatIsWrittenIsReadAgain) {
  const std::vector<Token> tokens = {0, 1, 255, 256, 1023, 65535};
  std::string file = write("a.bin", tokens);
  EXPECT_EQ(read_shards(std::vector{file}), tokens);
  EXPECT_EQ(std::string(as_text(MappedFile(file).bytes())), std::string(as_text(shard_bytes(tokens))));
  write("a.bin", {});
  EXPECT_TRUE(read_shards(std::vector{file}).empty());
}

TEST_F(ShardFile, LargeVocabulariesTakeFourBytesEach) {
  const std::vector<Token> tokens = {0, 65536, 128255, kMostTokens - 1};
  const std::string file = write("a.bin", tokens, kMostTokens);
  EXPECT_EQ(read_shards(std::vector{file}), tokens);
  EXPECT_EQ(std::string(as_text(MappedFile(file).bytes())), std::string(as_text(shard_bytes(tokens, kShard32))));
  EXPECT_EQ(MappedFile(write("b.bin", {1, 2}, kShard16Vocabulary + 1)).bytes().size(), 1032u);
  EXPECT_EQ(MappedFile(write("c.bin", {1, 2}, kShard16Vocabulary)).bytes().size(), 1028u);
}

TEST_F(ShardFile, NoTokenIsBeyondTheLargestVocabulary) {
  for (Token token : {static_cast<Token>(kMostTokens), Token{-1}})
    EXPECT_THAT(message_of([&] {
                  parse_shard(shard_bytes({1, token}, kShard32), "a.bin");
                }),
                AllOf(HasSubstr("position 1"), HasSubstr("at most 1048576")));
}

TEST_F(ShardFile, BothWidthsMayBeReadTogether) {
  write("a.bin", {1, 2});
  write("b.bin", {3, 70000}, kMostTokens);
  EXPECT_THAT(read_shards(std::vector{path("*.bin")}), ElementsAre(1, 2, 3, 70000));
}

TEST_P(ShardOfEachWidth, EveryTruncationIsRefused) {
  const ByteVector whole = shard({5, 6, 7});
  EXPECT_THAT(parse_shard(whole, "whole"), ElementsAre(5, 6, 7));
  for (size_t length = 0; length < whole.size(); ++length)
    EXPECT_THROW(parse_shard(Bytes(whole).first(length), "cut"), FormatError) << length;
}

TEST_P(ShardOfEachWidth, TrailingBytesAreRefused) {
  ByteVector bytes = shard({5, 6, 7});
  bytes.push_back(std::byte{0});
  EXPECT_THROW(parse_shard(bytes, "one more byte"), FormatError);
  bytes.push_back(std::byte{0});
  EXPECT_THAT(message_of([&] { parse_shard(bytes, "val.bin"); }),
              AllOf(HasSubstr("val.bin"), HasSubstr("3 tokens"),
                    HasSubstr(std::to_string(1024 + 3 * GetParam().token_bytes) + " B"),
                    HasSubstr(std::to_string(bytes.size()) + " B")));
}

TEST_P(ShardOfEachWidth, EveryFlippedHeaderBitIsRefused) {
  for (size_t at = 0; at < kShardHeaderBytes; ++at)
    for (int bit = 0; bit < 8; ++bit) {
      ByteVector bytes = shard({5, 6, 7});
      bytes[at] ^= static_cast<std::byte>(1 << bit);
      EXPECT_THROW(parse_shard(bytes, "flipped"), FormatError) << at << '.' << bit;
    }
}

TEST_P(ShardOfEachWidth, TokensOutsideTheVocabularyAreNamedWithTheirPosition) {
  const ByteVector bytes = shard({5, 1023, 1024, 9});
  EXPECT_NO_THROW(parse_shard(bytes, "a.bin"));
  EXPECT_NO_THROW(parse_shard(bytes, "a.bin", 1025));
  EXPECT_THAT(message_of([&] { parse_shard(bytes, "a.bin", 1024); }),
              AllOf(HasSubstr("a.bin"), HasSubstr("token 1024"), HasSubstr("position 2"), HasSubstr("has 1024")));
}

TEST_F(ShardFile, PatternsAreSortedAndConcatenated) {
  write("val_10.bin", {10});
  write("val_02.bin", {2});
  write("val_B.bin", {12});
  write("val_a.bin", {13});
  write("other.bin", {99});
  EXPECT_THAT(read_shards(std::vector{path("val_*.bin")}), ElementsAre(2, 10, 12, 13));
  EXPECT_THAT(read_shards(std::vector{path("other.bin"), path("val_[01]*.bin")}), ElementsAre(99, 2, 10));
}

TEST_F(ShardFile, ANameThatLooksLikeAPatternIsTakenLiterally) {
  write("val[1].bin", {1});
  write("val1.bin", {2});
  EXPECT_THAT(read_shards(std::vector{path("val[1].bin")}), ElementsAre(1));
}

TEST_F(ShardFile, AFileNamedTwiceIsRefused) {
  std::string file = write("a.bin", {1});
  EXPECT_THROW(read_shards(std::vector{file, path("*.bin")}), UsageError);
  EXPECT_THROW(read_shards(std::vector{file, path("./a.bin")}), UsageError);
}

TEST_F(ShardFile, MissingFilesAreIoErrors) {
  EXPECT_THROW(read_shards(std::vector{path("none.bin")}), IoError);
  EXPECT_THROW(read_shards(std::vector{path("none_*.bin")}), IoError);
  EXPECT_THROW(read_shards(std::vector{folder_.string()}), IoError);
}

TEST_F(ShardFile, AnUnreadableShardAmongSeveralIsNamed) {
  write("a.bin", {1});
  write_file_atomically(path("b.bin"), std::string_view("not a shard"));
  EXPECT_THAT(message_of([&] { read_shards(std::vector{path("*.bin")}); }), HasSubstr(path("b.bin")));
}

TEST(TokenShardData, TheCalibrationTokensAreAShard) {
  const std::string file = shared_data("golf30m/calibration_tokens.bin");
  if (!file_exists(file)) GTEST_SKIP() << file << " is not there";
  EXPECT_EQ(read_shards(std::vector{file}, 1024).size(), 64U * 2048);
}

}  // namespace
}  // namespace thimble::token_shard_test
