// bpe_tokenizer_test.cpp: tokenizer.json files against the `tokenizers` library (golden/make_golden.py made the files
// and the ids), and damaged ones.
#include "eval/tokenizers/bpe_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "eval/text/byte_table.h"
#include "eval/text/text_tokens.h"
#include "eval/tokenizers/tokenizer.h"
#include "runtime/base/file.h"
#include "runtime/base/json.h"
#include "tests/support/test_files.h"

namespace thimble::bpe_tokenizer_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string golden_path(const std::string& name) {
  return source_file("tests/eval/tokenizers/golden/") + name + ".json";
}
Json golden_json(const std::string& name) {
  MappedFile file(golden_path(name));
  return parse_json(file.bytes(), file.path());
}
Tokenizer golden(const std::string& name) { return Tokenizer::load(golden_path(name)); }
Tokenizer of(const Json& json) { return Tokenizer(as_bytes_of(json.dump()), "t.json"); }

std::string refusal_of(const Json& json) {
  try {
    of(json);
  } catch (const FormatError& error) {
    return error.what();
  }
  ADD_FAILURE() << "taken: " << json.dump().substr(0, 200);
  return {};
}

Token id_of(const Tokenizer& tokenizer, std::string_view piece) {
  for (Token token = 0; token < tokenizer.vocab_size(); ++token)
    if (tokenizer.piece(token) == piece) return token;
  ADD_FAILURE() << piece << " is no piece";
  return 0;
}

class GoldenTokenizer : public ::testing::TestWithParam<const char*> {
 protected:
  Tokenizer tokenizer_ = golden(GetParam());
  std::vector<std::string> texts_ = golden_json("ids").at("texts").get<std::vector<std::string>>();
};

TEST_P(GoldenTokenizer, IdsAreThoseOfTheReference) {
  const Json expected = golden_json("ids").at(GetParam());
  ASSERT_EQ(expected.size(), texts_.size());
  for (size_t i = 0; i < texts_.size(); ++i)
    EXPECT_EQ(tokenizer_.encode(texts_[i]), expected[i].get<std::vector<Token>>()) << texts_[i];
}

TEST_P(GoldenTokenizer, CountedBytesAreThoseOfTheDecodedText) {
  const ByteTable table(tokenizer_);
  const Token start = document_start_token(tokenizer_);
  EXPECT_TRUE(table.is_boundary(start));
  for (const std::string& text : texts_) {
    // After a boundary within a text a space in front is dropped from the count, and not from the text.
    if (text.find("<s>") != std::string::npos || text.find("<word>") != std::string::npos) continue;
    std::vector<Token> tokens = {start};
    for (Token token : tokenizer_.encode(text)) tokens.push_back(token);
    if (std::ranges::count_if(tokens, [&](Token token) { return table.is_boundary(token); }) > 1) continue;
    EXPECT_EQ(table.bytes_of_targets(tokens), static_cast<int64_t>(tokenizer_.decode(tokens).size())) << text;
  }
}

TEST_P(GoldenTokenizer, TextComesBack) {
  const std::string name = GetParam();
  if (name == "unknown" || name == "fused" || name == "nfkc") GTEST_SKIP() << "this one changes texts";
  const std::string text = "They'd seen  the \tKüste…\n\n 海は 😀 1234";
  EXPECT_EQ(tokenizer_.decode(tokenizer_.encode(text)), text);
}

INSTANTIATE_TEST_SUITE_P(All, GoldenTokenizer,
                         ::testing::Values("byte_level", "prefix_space", "digits", "split", "nfc", "nfkc", "tekken",
                                           "deepseek", "prepend", "metaspace", "always", "marks", "unknown", "fused"));

TEST(BpeTokenizer, BytesOfTokensOfAByteLevelVocabulary) {
  const Tokenizer tokenizer = golden("byte_level");
  const ByteTable table(tokenizer);
  const Token a = id_of(tokenizer, "a"), space = id_of(tokenizer, "Ġ"), byte = id_of(tokenizer, "æ");
  EXPECT_EQ(tokenizer.text_of(space), " ");
  EXPECT_EQ(tokenizer.text_of(byte), "\xE6");
  EXPECT_EQ(tokenizer.text_of(id_of(tokenizer, "Ġthe")), " the");
  EXPECT_EQ(table.bytes_of_target(0, space), 1);  // no space is put in front of a text, so none is dropped
  EXPECT_EQ(table.bytes_of_target(a, byte), 1);
  EXPECT_EQ(table.bytes_of_target(a, id_of(tokenizer, "<|endoftext|>")), 0);
  EXPECT_EQ(table.bytes_of_target(a, id_of(tokenizer, "<word>")), 6);  // added, but text
  EXPECT_EQ(tokenizer.kind(id_of(tokenizer, "<s>")), PieceKind::kBoundary);
  EXPECT_EQ(tokenizer.decode(std::vector<Token>{a, byte, a}), "a\uFFFDa");
}

TEST(BpeTokenizer, BytesOfTokensWithSpaceMarks) {
  const Tokenizer tokenizer = golden("prepend");
  const ByteTable table(tokenizer);
  const Token a = id_of(tokenizer, "a"), the = id_of(tokenizer, "▁the"), byte = id_of(tokenizer, "<0xE6>");
  EXPECT_EQ(tokenizer.kind(byte), PieceKind::kByte);
  EXPECT_EQ(table.bytes_of_target(a, byte), 1);
  EXPECT_EQ(table.bytes_of_target(a, the), 4);
  EXPECT_EQ(table.bytes_of_target(1, the), 3);
  EXPECT_EQ(table.bytes_of_target(a, id_of(tokenizer, "▁▁▁▁")), 4);
  EXPECT_EQ(tokenizer.kind(id_of(tokenizer, "<unk>")), PieceKind::kBoundary);
  // Where nothing is put in front, a space in front is text.
  const Tokenizer plain = golden("marks");
  EXPECT_EQ(ByteTable(plain).bytes_of_target(1, id_of(plain, "▁the")), 4);
}

TEST(BpeTokenizer, BosIsThePostProcessors) {
  EXPECT_EQ(golden("split").bos_id(), 1);
  EXPECT_EQ(golden("byte_level").bos_id(), std::nullopt);
  EXPECT_EQ(document_start_token(golden("byte_level")), 0);  // <|endoftext|>
}

TEST(BpeTokenizer, ThreadsThatShareOneGetTheSameIds) {
  const Tokenizer tokenizer = golden("split");
  std::string text;
  for (int i = 0; i < 2000; ++i) text += " the sea " + std::to_string(i);
  const std::vector<Token> expected = tokenizer.encode(text);
  std::vector<std::future<std::vector<Token>>> results(4);
  for (auto& result : results) result = std::async(std::launch::async, [&] { return tokenizer.encode(text); });
  for (auto& result : results) EXPECT_EQ(result.get(), expected);
}

TEST(BpeTokenizer, TheModelsVocabularyMayBeLarger) {
  const Tokenizer tokenizer = golden("split");
  const auto size = tokenizer.vocab_size();
  EXPECT_NO_THROW(check_vocab_size(tokenizer, size + 128, "m"));
  EXPECT_THROW(check_vocab_size(tokenizer, size - 1, "m"), FormatError);  // <right> is text
  const auto padding = static_cast<Token>(size + 1);
  EXPECT_EQ(tokenizer.kind(padding), PieceKind::kBoundary);
  EXPECT_EQ(ByteTable(tokenizer).bytes_of_target(0, padding), 0);
  EXPECT_EQ(tokenizer.decode(std::vector<Token>{padding}), "");
  Json json = golden_json("split");
  json["added_tokens"].push_back({{"id", size}, {"content", "<image>"}, {"special", true}});
  const Tokenizer larger = of(json);
  EXPECT_NO_THROW(check_vocab_size(larger, size, "m"));
  EXPECT_NO_THROW(check_tokens(larger, larger.encode("the sea"), size, "text"));
  EXPECT_THROW(check_tokens(larger, larger.encode("the <image>"), size, "text"), FormatError);
}

TEST(BpeTokenizer, TextThatIsNotUtf8IsRefused) {
  try {
    golden("split").encode("the \xFF sea");
    FAIL();
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), HasSubstr("not UTF-8 at its byte 4"));
  }
}

struct Change {
  const char* pointer;
  Json value;
  const char* message;
};

TEST(BpeTokenizer, WhatIsNotKnownIsRefusedWithKeyAndValue) {
  const Json regex = {{"Regex", "(a+)\\1"}};
  const Change changes[] = {
      {"/surprise", 3, "tokenizer.json: \"surprise\" is not known (its value is 3); known: added_tokens, decoder,"},
      {"/model/type", "Unigram", "model: \"type\" is \"Unigram\"; known: BPE"},
      {"/model/dropout", 0.1, "model: \"dropout\" is 0.1; known: null, 0"},
      {"/model/end_of_word_suffix", "</w>", "\"end_of_word_suffix\" is \"</w>\"; known: null, \"\""},
      {"/model/continuing_subword_prefix", "##", "\"continuing_subword_prefix\" is \"##\""},
      {"/model/byte_fallback", true, "\"byte_fallback\" is true; known: false beside a ByteLevel"},
      {"/model/unk_token", "nobody", "\"unk_token\" is \"nobody\"; known: texts of the vocabulary"},
      {"/model/ignore_merges", 1, "\"ignore_merges\" is 1; known: true, false"},
      {"/model/vocab", Json::array(), "\"vocab\" is []"},
      {"/model/vocab/zzz", -1, "'zzz' has the id -1; allowed are 0 to"},
      {"/model/vocab/zzz", 1000000, "more than half are missing"},
      {"/model/vocab/zzz", 0, "the id 0 is of two texts"},
      {"/model/merges/0", "a", "model merges 0: \"a\" is no pair of texts"},
      {"/model/merges/0", "a b c", "is no pair of texts"},
      {"/model/merges/0", {"a", 1}, "is no pair of texts"},
      {"/model/merges/0", {"z", "zzz"}, "joins or makes a text that is not in the vocabulary"},
      {"/model/other", "x", "model: \"other\" is not known (its value is \"x\")"},
      {"/normalizer", {{"type", "Lowercase"}}, "normalizer: \"type\" is \"Lowercase\"; known: Sequence, Prepend,"},
      {"/normalizer", {{"type", "Prepend"}, {"prepend", "x"}}, "\"prepend\" is \"x\""},
      {"/normalizer", {{"type", "NFC"}, {"more", 1}}, "normalizer: \"more\" is not known"},
      {"/pre_tokenizer",
       {{"type", "Whitespace"}},
       "pre_tokenizer: \"type\" is \"Whitespace\"; known: Sequence, Split,"},
      {"/pre_tokenizer/pretokenizers/0/behavior", "Sideways",
       "\"behavior\" is \"Sideways\"; known: Isolated, Removed,"},
      {"/pre_tokenizer/pretokenizers/0/pattern", regex, "has \\1, which is not known"},
      {"/pre_tokenizer/pretokenizers/0/pattern", "x", "\"pattern\" is \"x\"; known: {\"Regex\""},
      {"/decoder", {{"type", "WordPiece"}}, "decoder: \"type\" is \"WordPiece\"; known: ByteLevel, ByteFallback,"},
      {"/decoder", {{"type", "ByteFallback"}}, "decoder: \"type\" is \"ByteFallback\"; known: ByteLevel"},
      {"/post_processor", {{"type", "BertProcessing"}}, "\"type\" is \"BertProcessing\"; known: ByteLevel,"},
      {"/post_processor/single/0/SpecialToken/id", "nobody", "SpecialToken of a special added token"},
      {"/added_tokens/0/id", 5, "has the id 5, the vocabulary says 0"},
      {"/added_tokens/0/id", 4000000, "\"id\" is 4000000; known: 0 to"},
      {"/added_tokens/0/id", 900000, "the id 900000 is far above"},
      {"/added_tokens/0/id", 1, "an id that no other added token has"},
      {"/added_tokens/0/content", "", "\"content\" is \"\""},
      {"/added_tokens/0/content", "<s>", "a text that no other added token has"},
      {"/added_tokens/0/lstrip", "no", "\"lstrip\" is \"no\"; known: true, false"},
      {"/added_tokens", 7, "added_tokens must be an array"},
  };
  for (const Change& change : changes) {
    Json json = golden_json("split");
    json[Json::json_pointer(change.pointer)] = change.value;
    EXPECT_THAT(refusal_of(json), HasSubstr(change.message)) << change.pointer;
  }
}

TEST(BpeTokenizer, FilesCutShortAreRefused) {
  const std::string text = golden_json("split").dump();
  for (size_t length = 1; length < text.size(); length += 13)
    EXPECT_THROW(Tokenizer(as_bytes_of(text.substr(0, length)), "t.json"), FormatError) << length;
}

TEST(BpeTokenizer, NormalizersThatBlowATextUpGiveUp) {
  Json json = golden_json("split");
  const Json grow = {{"type", "Replace"}, {"pattern", {{"Regex", "."}}}, {"content", "0123456789abcdef"}};
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", Json::array({grow, grow, grow, grow})}};
  json["added_tokens"] = Json::array();
  json["post_processor"] = nullptr;
  const Tokenizer tokenizer = of(json);
  EXPECT_THROW(tokenizer.encode("the sea"), FormatError);
}

}  // namespace
}  // namespace thimble::bpe_tokenizer_test
