// tokenize_cli_test.cpp: `thimble tokenize`, and texts and tokenizers that it refuses.
#include <algorithm>
#include <filesystem>

#include "eval/text/token_shard.h"
#include "tests/cli/cli_fixture.h"
#include "tests/support/test_files.h"

namespace thimble::testing::tokenize_cli_test {
namespace {

class TokenizeCliTest : public CliTest {
 protected:
  TokenizeCliTest() {
    const std::string golden = source_file("tests/eval/tokenizers/golden/split.json");
    std::filesystem::copy_file(golden, path("tokenizer.json"));
  }
  Json tokenizer_json() const {
    const ByteVector file = contents("tokenizer.json");
    return parse_json(file, "tokenizer.json");
  }
  static Arguments tokenize(const std::string& output, const Arguments& more = {}) {
    return Arguments{"tokenize", "text.txt", "-o", output, "--tokenizer", "sp.model"} + more;
  }
  std::vector<Token> tokens_of(const std::string& name) const { return parse_shard(contents(name), name); }
};

TEST_F(TokenizeCliTest, AShardHasTheTokensThatScoringATextHas) {
  const Json result = succeed_json(tokenize("new.bin"));
  EXPECT_EQ(contents("new.bin"), contents("val.bin"));
  EXPECT_EQ(result.at("tokens"), tokens_of("val.bin").size());
  EXPECT_EQ(result.at("text_bytes"), size("text.txt"));
  EXPECT_EQ(result.at("token_bytes"), 2);
  auto score = [&](const Arguments& text) {
    const Arguments eval = {"eval", "model.safetensors", "--tokenizer", "sp.model", "--context", "32"};
    return without_times(succeed_json(eval + text).at("evaluations").at(0));
  };
  EXPECT_EQ(score({"--tokens", "new.bin"}), score({"--text", "text.txt"}));
}

TEST_F(TokenizeCliTest, TextsFollowEachOtherDocumentByDocument) {
  write("a.txt", "the sea\n<|doc|>\nthe shore\n");
  write("b.txt", "\n\nlight\n");
  const Json result = succeed_json({"tokenize", "a.txt", "b.txt", "-o", "ab.bin", "--tokenizer", "tokenizer.json"});
  EXPECT_EQ(result.at("documents"), 3);
  EXPECT_EQ(result.at("counted_bytes"), 7 + 9 + 5);
  std::vector<Token> expected;
  for (const char* text : {"the sea", "the shore", "light"}) {
    write("one.txt", text);
    succeed({"tokenize", "one.txt", "-o", "one.bin", "--tokenizer", "tokenizer.json"});
    for (Token token : tokens_of("one.bin")) expected.push_back(token);
  }
  EXPECT_EQ(tokens_of("ab.bin"), expected);
  EXPECT_EQ(std::ranges::count(expected, 1), 3);  // BOS
}

TEST_F(TokenizeCliTest, SeveralShardsAreReadInOrder) {
  const size_t count = tokens_of("val.bin").size();
  const std::string most = std::to_string((count + 2) / 3);
  const Json result = succeed_json(tokenize("part.bin", {"--shard-tokens", most}));
  ASSERT_EQ(result.at("shards").size(), 3u);
  EXPECT_EQ(result.at("shards").at(2).at("path"), "part_000002.bin");
  EXPECT_FALSE(exists("part.bin"));
  std::vector<Token> joined;
  for (const Json& shard : result.at("shards")) {
    const std::vector<Token> part = tokens_of(shard.at("path"));
    EXPECT_EQ(part.size(), shard.at("tokens"));
    joined.insert(joined.end(), part.begin(), part.end());
  }
  EXPECT_EQ(joined, tokens_of("val.bin"));
  succeed(tokenize("part.bin", {"--shard-tokens", most}));  // the same again
  // A pattern would find shards of two runs.
  const ByteVector first = contents("part_000000.bin");
  expect_failure(2, tokenize("part.bin", {"--shard-tokens", std::to_string(count)}),
                 {"'part_000001.bin' is there", "1 shard of this one"});
  EXPECT_EQ(contents("part_000000.bin"), first);
  std::filesystem::create_directory(path("folder"));
  succeed(tokenize("folder/v", {"--shard-tokens", std::to_string(count)}));
  EXPECT_EQ(tokens_of("folder/v_000000"), tokens_of("val.bin"));
}

TEST_F(TokenizeCliTest, LargeVocabulariesHaveTokensOf32Bits) {
  Json json = tokenizer_json();
  for (int id = static_cast<int>(json.at("model").at("vocab").size()); id < 70'000; ++id)
    json["model"]["vocab"]["more" + std::to_string(id)] = id + 10;
  write("large.json", json.dump());
  const Json result = succeed_json({"tokenize", "text.txt", "-o", "large.bin", "--tokenizer", "large.json"});
  EXPECT_EQ(result.at("token_bytes"), 4);
  EXPECT_EQ(result.at("vocabulary"), 70'010);
  succeed({"tokenize", "text.txt", "-o", "small.bin", "--tokenizer", "tokenizer.json"});
  EXPECT_EQ(tokens_of("large.bin"), tokens_of("small.bin"));
  EXPECT_EQ(size("large.bin") - kShardHeaderBytes, 2 * (size("small.bin") - kShardHeaderBytes));
}

TEST_F(TokenizeCliTest, TextThatIsNotUtf8IsRefusedWithItsOffset) {
  const std::vector<std::pair<std::string, int>> cases = {{"ab\xff", 2},
                                                          {"\xc3\xa9\xc3", 2},
                                                          {"the sea\n<|doc|>\n\xe2\x82", 16},
                                                          {"\x80 the sea", 0},
                                                          {"a\xc0\xaf", 1},
                                                          {"abc\xed\xa0\x80", 3},
                                                          {"abc\xf4\x90\x80\x80", 3},
                                                          {"abc\xe0\x80\x80", 3},
                                                          {"abc\xf8\x88\x80\x80\x80", 3}};
  for (const auto& [text, at] : cases) {
    write("bad.txt", text);
    const std::vector<std::string> words = {"bad.txt: not UTF-8 at byte " + std::to_string(at) + ";"};
    for (const char* tokenizer : {"sp.model", "tokenizer.json"})
      expect_failure(4, {"tokenize", "text.txt", "bad.txt", "-o", "new.bin", "--tokenizer", tokenizer}, words);
    expect_failure(4, {"eval", "model.safetensors", "--text", "bad.txt", "--tokenizer", "sp.model"}, words);
  }
  EXPECT_FALSE(exists("new.bin"));
}

TEST_F(TokenizeCliTest, ExpressionsThatTakeForeverGiveUp) {
  Json json = tokenizer_json();
  json["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"Regex", "(?:a+)+b|c"}};
  write("slow.json", json.dump());
  write("a.txt", std::string(5000, 'a'));
  expect_failure(4, {"tokenize", "a.txt", "-o", "new.bin", "--tokenizer", "slow.json"},
                 {"slow.json", "the regular expression '(?:a+)+b|c' cannot be matched at byte 0 of a text", "limit"});
  EXPECT_FALSE(exists("new.bin"));
}

TEST_F(TokenizeCliTest, WhatCannotBeWrittenOrReadIsSaid) {
  write("empty.txt", "\n<|doc|>\n\n");
  expect_failure(4, {"tokenize", "empty.txt", "-o", "new.bin", "--tokenizer", "sp.model"}, {"empty.txt", "no text"});
  expect_failure(5, {"tokenize", "nobody.txt", "-o", "new.bin", "--tokenizer", "sp.model"}, {"nobody.txt"});
  expect_failure(4, {"tokenize", "text.txt", "-o", "new.bin", "--tokenizer", "text.txt"}, {"text.txt"});
  expect_failure(2, {"tokenize", "text.txt", "--tokenizer", "sp.model"}, {"--output"});
  expect_failure(2, tokenize("new.bin", {"--shard-tokens", "0"}), {"--shard-tokens"});
  expect_failure(5, tokenize("nowhere/new.bin"), {"nowhere"});
  for (const char* input : {"text.txt", "./text.txt", "sp.model"}) {
    const ByteVector before = contents(input);
    expect_failure(2, tokenize(input), {"would replace the"});
    EXPECT_EQ(contents(input), before);
  }
  // A shard that is known by its number only at the end.
  write("text_000000", "the sea");
  expect_failure(2, {"tokenize", "text_000000", "-o", "text", "--tokenizer", "sp.model", "--shard-tokens", "2"},
                 {"would replace the text 'text_000000'"});
  EXPECT_FALSE(exists("new.bin"));
}

}  // namespace
}  // namespace thimble::testing::tokenize_cli_test
