// byte_table_test.cpp: bytes per token, each rule and each known way to miscount.
#include "eval/text/byte_table.h"

#include <gtest/gtest.h>

#include "eval/text/text_tokens.h"
#include "eval/text/token_shard.h"
#include "runtime/base/file.h"
#include "tests/eval/tokenizers/tokenizer_builder.h"
#include "tests/support/test_files.h"

namespace thimble::byte_table_test {
namespace {

using namespace thimble::testing;

constexpr Token kUnknownToken = 0;
constexpr Token kA = kFirstTextToken;  // ordinary text, with no mark
enum : Token { kMark = kA + 1, kMarkThe, kAccent, kMarkAccent, kTwoMarks, kInnerMark, kUnusedPiece, kSymbol };

ModelSpec spec() {
  return byte_fallback_model({{"a"},
                              {"▁"},
                              {"▁the"},
                              {"é"},
                              {"▁é"},
                              {"▁▁"},
                              {"a▁b"},
                              {"▁gone", PieceType::kUnused},
                              {"▁<sep>", PieceType::kUserDefined}});
}

class ByteTableRules : public ::testing::Test {
 protected:
  Tokenizer tokenizer_ = spec().tokenizer();
  ByteTable table_{tokenizer_};
};

TEST_F(ByteTableRules, BoundaryTokensHaveNoBytes) {
  for (Token token : {kUnknownToken, kBosToken, Token{2}, Token{kUnusedPiece}}) {
    EXPECT_TRUE(table_.is_boundary(token));
    EXPECT_EQ(table_.bytes_of_target(kA, token), 0);
    EXPECT_EQ(table_.bytes_of_target(kBosToken, token), 0);
  }
  EXPECT_FALSE(table_.is_boundary(kA));
}

TEST_F(ByteTableRules, ByteTokensAreOneByteNotTheirSpelling) {
  for (int byte = 0; byte < 256; ++byte) {
    auto token = static_cast<Token>(kFirstByteToken + byte);
    EXPECT_EQ(table_.bytes_of_target(kA, token), 1);
    EXPECT_EQ(table_.bytes_of_target(kBosToken, token), 1);
  }
}

TEST_F(ByteTableRules, TheLeadingSpaceCountsOnceAndOnlyAfterText) {
  EXPECT_EQ(table_.bytes_of_target(kA, kMarkThe), 4);
  EXPECT_EQ(table_.bytes_of_target(kFirstByteToken, kMarkThe), 4);
  EXPECT_EQ(table_.bytes_of_target(kMark, kMarkThe), 4);
  for (Token boundary : {kUnknownToken, kBosToken, Token{2}, Token{kUnusedPiece}})
    EXPECT_EQ(table_.bytes_of_target(boundary, kMarkThe), 3);
  EXPECT_EQ(table_.bytes_of_target(kA, kSymbol), 6);  // user-defined symbols are text: " <sep>"
}

TEST_F(ByteTableRules, TheMarkAloneIsOneSpace) {
  EXPECT_EQ(table_.bytes_of_target(kA, kMark), 1);
  EXPECT_EQ(table_.bytes_of_target(kBosToken, kMark), 0);
}

TEST_F(ByteTableRules, LengthsAreBytesNotCharacters) {
  EXPECT_EQ(table_.bytes_of_target(kA, kAccent), 2);
  EXPECT_EQ(table_.bytes_of_target(kA, kMarkAccent), 3);
}

TEST_F(ByteTableRules, MarksInsideAPieceAreOneSpaceEach) {
  EXPECT_EQ(table_.bytes_of_target(kA, kTwoMarks), 2);
  EXPECT_EQ(table_.bytes_of_target(kBosToken, kTwoMarks), 1);
  EXPECT_EQ(table_.bytes_of_target(kA, kInnerMark), 3);
}

TEST_F(ByteTableRules, TheFirstTokenIsOnlyContext) {
  const std::vector<Token> tokens = {kMarkThe, kMarkThe, kBosToken, kMarkThe};
  EXPECT_EQ(table_.bytes_of_targets(tokens), 4 + 0 + 3);
  EXPECT_EQ(table_.bytes_of_targets(std::vector<Token>{kMarkThe}), 0);
  EXPECT_EQ(table_.bytes_of_targets({}), 0);
}

TEST_F(ByteTableRules, TokensOutsideTheVocabularyAreRefused) {
  auto beyond = static_cast<Token>(table_.vocab_size());
  EXPECT_THROW(table_.bytes_of_targets(std::vector<Token>{kA, beyond}), UsageError);
  EXPECT_THROW(table_.bytes_of_targets(std::vector<Token>{beyond}), UsageError);
}

TEST_F(ByteTableRules, CountsAreTheBytesOfTheDecodedText) {
  for (const char* text : {"the", "a the a", "thé", "日本 the", "a\tb\nthe", "é é the", "aaaa", "😀 the 😀", "a b the"}) {
    std::vector<Token> tokens = tokens_of_text(tokenizer_, text, "text");
    EXPECT_EQ(table_.bytes_of_targets(tokens), static_cast<int64_t>(std::string_view(text).size())) << text;
  }
}

TEST(ByteTableData, PublishedTotalsOfTheValidationTokens) {
  const std::string shard = shared_data("golf30m/val.bin"), model = shared_data("text/sp1024.model");
  if (!file_exists(shard) || !file_exists(model)) GTEST_SKIP() << "the shared data is not there";
  const std::vector<Token> tokens = read_shards(std::vector{shard}, 1024);
  const ByteTable table(Tokenizer::load(model));
  ASSERT_EQ(tokens.size(), 600001U);
  EXPECT_EQ(table.bytes_of_targets(tokens), 1442440);
  EXPECT_EQ(table.bytes_of_targets(std::span(tokens).first(250001)), 603663);
}

}  // namespace
}  // namespace thimble::byte_table_test
