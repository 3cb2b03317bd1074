// text_tokens_test.cpp: documents and their tokens.
#include "eval/text/text_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "eval/text/token_shard.h"
#include "runtime/base/file.h"
#include "tests/eval/tokenizers/tokenizer_builder.h"
#include "tests/support/test_files.h"

namespace thimble::text_tokens_test {
namespace {

using namespace thimble::testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(TextTokens, DocumentsAreSplitAtSeparatorLines) {
  EXPECT_THAT(split_documents("one\n<|doc|>\ntwo\nlines\n<|doc|>\nthree\n"), ElementsAre("one", "two\nlines", "three"));
  EXPECT_THAT(split_documents("\n\none\n\n<|doc|>\n\n\ntwo"), ElementsAre("one", "two"));
  EXPECT_THAT(split_documents("one"), ElementsAre("one"));
}

TEST(TextTokens, TheSeparatorMustBeTheWholeLine) {
  EXPECT_THAT(split_documents("a <|doc|>\nb\n<|doc|> c"), ElementsAre("a <|doc|>\nb\n<|doc|> c"));
  EXPECT_THAT(split_documents("<|doc|>x\n<|doc|>"), ElementsAre("<|doc|>x"));
}

TEST(TextTokens, EmptyDocumentsAreLeftOut) {
  EXPECT_THAT(split_documents(""), IsEmpty());
  EXPECT_THAT(split_documents("\n\n"), IsEmpty());
  EXPECT_THAT(split_documents("<|doc|>"), IsEmpty());
  EXPECT_THAT(split_documents("<|doc|>\n<|doc|>\na\n<|doc|>\n\n<|doc|>\n"), ElementsAre("a"));
}

TEST(TextTokens, EveryDocumentBeginsWithBos) {
  Tokenizer tokenizer = byte_fallback_model({{"a"}, {"▁"}}).tokenizer();
  const Token a = kFirstTextToken, mark = kFirstTextToken + 1;
  EXPECT_THAT(tokens_of_text(tokenizer, "a\n<|doc|>\naa", "t"), ElementsAre(kBosToken, mark, a, kBosToken, mark, a, a));
}

TEST(TextTokens, ATokenizerWithoutBosUsesTokenOneOnlyIfItStandsForNoText) {
  ModelSpec spec;
  spec.pieces = {{"<unk>", PieceType::kUnknown}, {"<doc>", PieceType::kControl}, {"▁"}, {"a"}};
  EXPECT_EQ(document_start_token(spec.tokenizer()), 1);
  spec.pieces[1] = {"b"};
  EXPECT_THROW(document_start_token(spec.tokenizer()), FormatError);
}

TEST(TextTokens, TheBosOfTheTokenizerWins) {
  ModelSpec spec;
  spec.pieces = {{"<unk>", PieceType::kUnknown}, {"<pad>", PieceType::kControl}, {"<s>", PieceType::kControl}, {"▁"}};
  EXPECT_EQ(document_start_token(spec.tokenizer()), 2);
}

TEST(TextTokens, TextThatIsNotUtf8IsRefusedWithThePosition) {
  Tokenizer tokenizer = byte_fallback_model({{"a"}}).tokenizer();
  try {
    tokens_of_text(tokenizer, "aaa\xFF", "bad.txt");
    FAIL();
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("bad.txt"), HasSubstr("byte 3")));
  }
}

TEST(TextTokensData, ThePublicTextGivesItsPublishedTokens) {
  const std::string folder = shared_data("text/");
  if (!file_exists(folder + "val_public.txt")) GTEST_SKIP() << "the shared data is not there";
  Tokenizer tokenizer = Tokenizer::load(folder + "sp1024.model");
  EXPECT_EQ(tokens_of_text_file(tokenizer, folder + "val_public.txt"),
            read_shards(std::vector{folder + "val_public.sp1024.bin"}, tokenizer.vocab_size()));
}

}  // namespace
}  // namespace thimble::text_tokens_test
