// text_windows_test.cpp: windows of shards and texts: from everywhere, whole, the same again, held out from other text.
#include "eval/text/text_windows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <array>
#include <fstream>
#include <functional>
#include <numeric>
#include <set>

#include "eval/text/text_tokens.h"
#include "eval/text/token_shard.h"
#include "tests/eval/tokenizers/tokenizer_builder.h"
#include "tests/runtime/base/temporary_folder.h"

namespace thimble::text_windows_test {
namespace {

using namespace thimble::testing;
using ::testing::HasSubstr;

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const FormatError& error) {
    return error.what();
  }
  return "no FormatError";
}

// Tokens 0, 1, 2, ... in one shard or in several, so that a token says where it lay.
class ShardWindows : public ::testing::Test {
 protected:
  static constexpr int64_t kTokens = 10000, kLength = 50;

  std::vector<std::string> shards(std::vector<int64_t> counts) {
    std::vector<std::string> files;
    Token next = 0;
    for (int64_t count : counts) {
      std::vector<Token> tokens(static_cast<size_t>(count));
      std::iota(tokens.begin(), tokens.end(), next);
      next += static_cast<Token>(count);
      files.push_back(folder_.file("shard" + std::to_string(files.size()) + ".bin"));
      write_shard(files.back(), tokens, kShard16Vocabulary);
    }
    return files;
  }

  TemporaryFolder folder_;
};

TEST_F(ShardWindows, ComeFromEveryStretchInRandomOrder) {
  const std::vector<std::string> files = shards({kTokens});
  const TokenSequences windows = draw_shard_windows(files, {100, kLength, 0, 5}, kTokens);
  ASSERT_EQ(windows.count, 100);
  ASSERT_EQ(windows.tokens.size(), 100 * kLength);
  std::vector<Token> firsts;
  for (int64_t s = 0; s < windows.count; ++s) {
    const auto window = windows.sequence(s);
    firsts.push_back(window[0]);
    for (size_t i = 1; i < window.size(); ++i) ASSERT_EQ(window[i], (window[i - 1] + 1) % kTokens);
  }
  EXPECT_FALSE(std::ranges::is_sorted(firsts));
  std::ranges::sort(firsts);
  for (size_t i = 0; i < firsts.size(); ++i) EXPECT_EQ(firsts[i] / 100, static_cast<Token>(i));
}

TEST_F(ShardWindows, DoNotDependOnHowTheTokensAreCut) {
  const WindowOptions options = {64, kLength, 4, 9};
  const TokenSequences whole = draw_shard_windows(shards({kTokens}), options, kTokens);
  EXPECT_EQ(draw_shard_windows(shards({1, 0, 4999, 4990, 10}), options, kTokens).tokens, whole.tokens);
  EXPECT_EQ(draw_shard_windows(shards({kTokens}), options, kTokens).tokens, whole.tokens);
  EXPECT_NE(draw_shard_windows(shards({kTokens}), {64, kLength, 4, 10}, kTokens).tokens, whole.tokens);
}

TEST_F(ShardWindows, TheLastOnesAreHeldOut) {
  const TokenSequences windows = draw_shard_windows(shards({kTokens}), {64, kLength, 4, 1}, kTokens);
  const Token boundary = kTokens - kTokens / 16;
  for (int64_t s = 0; s < windows.count; ++s)
    for (Token token : windows.sequence(s)) EXPECT_EQ(token >= boundary, s >= 60) << s;
}

TEST_F(ShardWindows, OfOneWindowNothingIsHeldOut) {
  const TokenSequences windows = draw_shard_windows(shards({kLength}), {4, kLength, 1, 1}, kTokens);
  for (int64_t s = 0; s < windows.count; ++s) {
    const auto window = windows.sequence(s);
    EXPECT_EQ(std::set<Token>(window.begin(), window.end()).size(), kLength);
  }
}

TEST_F(ShardWindows, RefuseTooLittleAndTokensBeyondTheVocabulary) {
  const std::vector<std::string> files = shards({30, 19});
  EXPECT_THAT(message_of([&] {
                draw_shard_windows(files, {1, 50, 0, 0}, kTokens);
              }),
              ::testing::AllOf(HasSubstr("shard0.bin"), HasSubstr("49 tokens in 2 files together"), HasSubstr("50")));
  EXPECT_THAT(message_of([&] {
                draw_shard_windows(files, {1, 49, 0, 0}, 40);
              }),
              ::testing::AllOf(HasSubstr("shard1.bin"), HasSubstr("token 40 at position 10"), HasSubstr("40 tokens")));
}

// Letters are tokens of their own, so that windows can be looked up in the text.
class TextWindowsTest : public ::testing::Test {
 protected:
  static constexpr int64_t kLength = 40;

  std::string file(const std::string& name, const std::string& text) {
    std::ofstream(folder_.file(name), std::ios::binary) << text;
    return folder_.file(name);
  }

  // Without what the tokenizer puts in front of a text.
  std::string text_of(std::span<const Token> tokens) const { return tokenizer_.decode(tokens); }

  static std::string words(int first, int count) {
    std::string text;
    for (int i = first; i < first + count; ++i) text += "w" + std::to_string(i) + " ";
    return text;
  }

  TemporaryFolder folder_;
  Tokenizer tokenizer_ = byte_fallback_model({{"▁"}, {"w"}}).tokenizer();
};

TEST_F(TextWindowsTest, BeginWithWordsAndGoOnAsTheTextDoes) {
  const std::string text = words(10000, 3000);
  const std::vector<std::string> files = {file("a.txt", text)};
  const TokenSequences windows = draw_text_windows(files, tokenizer_, {32, kLength, 0, 3});
  ASSERT_EQ(windows.count, 32);
  ASSERT_EQ(windows.tokens.size(), 32 * kLength);
  int64_t wrapped = 0;
  for (int64_t s = 0; s < windows.count; ++s) {
    const std::string window = text_of(windows.sequence(s));
    if (window.find("w10000 ") != std::string::npos) {  // the text's beginning, perhaps behind its end
      ++wrapped;
      continue;
    }
    EXPECT_NE(text.find(window), std::string::npos) << window;
    EXPECT_EQ(window[0], 'w') << window;
  }
  EXPECT_LE(wrapped, 2);
}

TEST_F(TextWindowsTest, DocumentsFollowOneAnotherBehindTheirStartToken) {
  const std::vector<std::string> files = {file("a.txt", "w1\n<|doc|>\nw2 w3"), file("b.txt", "w4")};
  std::vector<Token> all;
  for (const std::string& name : files) {
    const std::vector<Token> tokens = tokens_of_text_file(tokenizer_, name);
    all.insert(all.end(), tokens.begin(), tokens.end());
  }
  const auto length = static_cast<int64_t>(all.size());
  // A window that begins with a document holds all of them in turn, as those who score them see them.
  const TokenSequences windows = draw_text_windows(files, tokenizer_, {16, length, 0, 2});
  int64_t whole = 0;
  for (int64_t s = 0; s < windows.count; ++s) {
    std::vector<Token> window(windows.sequence(s).begin(), windows.sequence(s).end());
    if (window[0] != kBosToken) continue;
    ++whole;
    bool is_rotated = false;
    for (size_t i = 0; i < all.size() && !is_rotated; ++i) {
      std::rotate(window.begin(), window.begin() + 1, window.end());
      is_rotated = window == all;
    }
    EXPECT_TRUE(is_rotated);
  }
  EXPECT_GT(whole, 0);
}

TEST_F(TextWindowsTest, TheLastOnesComeFromOtherDocuments) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += words(10000 + i * 100, 60) + "\n<|doc|>\n";
  const std::vector<std::string> files = {file("a.txt", text)};
  const TokenSequences windows = draw_text_windows(files, tokenizer_, {64, kLength, 4, 1});
  auto documents = [&](int64_t first, int64_t last) {
    std::set<std::string> seen;
    for (int64_t s = first; s < last; ++s) {
      const std::string window = text_of(windows.sequence(s));
      for (size_t at = window.find('w'); at != std::string::npos && at + 6 <= window.size();
           at = window.find('w', at + 1))
        if (window[at + 6 - 1] != ' ') seen.insert(window.substr(at + 1, 3));
    }
    return seen;
  };
  const std::set<std::string> learned = documents(0, 60), held_out = documents(60, 64);
  EXPECT_GT(learned.size(), 30U);
  ASSERT_FALSE(held_out.empty());
  for (const std::string& document : held_out) EXPECT_FALSE(learned.contains(document)) << document;
}

TEST_F(TextWindowsTest, ALongDocumentIsHeldOutFromAWordOn) {
  const std::vector<std::string> files = {file("a.txt", words(10000, 4000))};
  const TokenSequences windows = draw_text_windows(files, tokenizer_, {64, kLength, 4, 1});
  std::set<int> learned, held_out;
  for (int64_t s = 0; s < windows.count; ++s) {
    const std::string window = text_of(windows.sequence(s));
    for (size_t at = window.find('w'); at != std::string::npos && at + 6 < window.size(); at = window.find('w', at + 1))
      (s < 60 ? learned : held_out).insert(std::stoi(window.substr(at + 1, 5)));
  }
  ASSERT_FALSE(held_out.empty());
  EXPECT_LT(*learned.rbegin(), *held_out.begin());
  EXPECT_GT(*held_out.begin(), 10000 + 4000 * 7 / 8);
}

TEST_F(TextWindowsTest, AreTheSameAgainAndOthersWithAnotherSeed) {
  const std::vector<std::string> files = {file("a.txt", words(0, 3000))};
  const std::vector<Token> tokens = draw_text_windows(files, tokenizer_, {8, kLength, 1, 4}).tokens;
  EXPECT_EQ(draw_text_windows(files, tokenizer_, {8, kLength, 1, 4}).tokens, tokens);
  EXPECT_NE(draw_text_windows(files, tokenizer_, {8, kLength, 1, 5}).tokens, tokens);
}

TEST_F(TextWindowsTest, TextWithoutSpacesBeginsWithACharacter) {
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "語";
  const TokenSequences windows = draw_text_windows(std::array{file("a.txt", text)}, tokenizer_, {32, kLength, 0, 3});
  for (int64_t s = 0; s < windows.count; ++s) {
    const std::string window = text_of(windows.sequence(s));
    EXPECT_THAT(window, ::testing::StartsWith("語"));
  }
}

TEST_F(TextWindowsTest, RefuseTooLittleText) {
  for (const char* text : {"", "\n\n<|doc|>\n", "w w w"})
    EXPECT_THAT(message_of([&] {
                  draw_text_windows(std::array{file("short.txt", text)}, tokenizer_, {1, 40, 0, 0});
                }),
                ::testing::AllOf(HasSubstr("short.txt"), HasSubstr("allowed is at least the calibration length, 40")))
        << text;
}

TEST_F(TextWindowsTest, TextThatIsNotUtf8IsRefusedWithItsPlace) {
  EXPECT_THAT(
      message_of([&] {
        draw_text_windows(std::array{file("bad.txt", "w w w\n<|doc|>\nw w\xFF w w")}, tokenizer_, {1, 12, 0, 0});
      }),
      ::testing::AllOf(HasSubstr("bad.txt"), HasSubstr("not UTF-8 at byte 17")));
}

}  // namespace
}  // namespace thimble::text_windows_test
