// special_tokens_test.cpp: where texts begin and end, as families of models say it in their files, and files that
// contradict each other.
#include "eval/text/special_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "runtime/base/atomic_file.h"
#include "tests/eval/tokenizers/tokenizer_builder.h"
#include "tests/runtime/base/temporary_folder.h"
#include "tests/support/test_files.h"

namespace thimble::special_tokens_test {
namespace {

using namespace thimble::testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A copy of a tokenizer.json of golden/ in a folder, with what its tests write beside it.
class SpecialTokensTest : public ::testing::Test {
 protected:
  Tokenizer golden(const std::string& name) {
    const std::string path = source_file("tests/eval/tokenizers/golden/") + name + ".json";
    const auto replace = std::filesystem::copy_options::overwrite_existing;
    std::filesystem::copy_file(path, folder_.file("tokenizer.json"), replace);
    return Tokenizer::load(folder_.file("tokenizer.json"));
  }
  void write_config(const std::string& text) {
    write_file_atomically(folder_.file("tokenizer_config.json"), std::string_view(text));
  }
  std::string refusal(const Tokenizer& tokenizer, const Json& config, int64_t vocabulary) {
    try {
      find_special_tokens(tokenizer, vocabulary, config, "config.json");
    } catch (const FormatError& error) {
      return error.what();
    }
    ADD_FAILURE() << "taken";
    return {};
  }
  TemporaryFolder folder_;
};

// <|endoftext|> 0, <s> 1, </s> 2.
TEST_F(SpecialTokensTest, BosOfThePostProcessorIsInFrontWhateverOthersSay) {
  const Tokenizer tokenizer = golden("split");
  write_config(R"({"bos_token": "<|endoftext|>", "eos_token": {"content": "</s>", "lstrip": false}})");
  const SpecialTokens tokens = find_special_tokens(tokenizer, tokenizer.vocab_size(),
                                                   {{"bos_token_id", 7}, {"eos_token_id", {9, 8, 9}}}, "config.json");
  EXPECT_EQ(tokens.bos, 1);
  EXPECT_TRUE(tokens.is_bos_in_front);
  EXPECT_THAT(tokens.eos, ElementsAre(2, 8, 9));
  EXPECT_THAT(tokens.all, ElementsAre(0, 1, 2, 8, 9));
}

TEST_F(SpecialTokensTest, OtherwiseTheTokenizersConfigNamesIt) {
  const Tokenizer tokenizer = golden("byte_level");
  const int64_t vocabulary = tokenizer.vocab_size();
  write_config(R"({"bos_token": {"content": "<s>"}, "chat_template": "...", "model_max_length": 1e30})");
  SpecialTokens tokens = find_special_tokens(tokenizer, vocabulary, {{"bos_token_id", 0}}, "config.json");
  EXPECT_EQ(tokens.bos, 1);
  EXPECT_FALSE(tokens.is_bos_in_front);
  EXPECT_THAT(tokens.eos, ElementsAre());

  write_config(R"({"bos_token": null, "eos_token": "<|endoftext|>"})");  // as models do that begin without a token
  tokens = find_special_tokens(tokenizer, vocabulary, {{"bos_token_id", 1}}, "config.json");
  EXPECT_EQ(tokens.bos, std::nullopt);
  EXPECT_THAT(tokens.eos, ElementsAre(0));

  write_config("{}");
  EXPECT_EQ(find_special_tokens(tokenizer, vocabulary, {{"bos_token_id", 1}}, "config.json").bos, 1);
}

TEST_F(SpecialTokensTest, AloneTheModelsConfigDoes) {
  const Tokenizer tokenizer = golden("byte_level");
  const SpecialTokens tokens =
      find_special_tokens(tokenizer, tokenizer.vocab_size(), {{"bos_token_id", 1}, {"eos_token_id", 2}}, "config.json");
  EXPECT_EQ(tokens.bos, 1);
  EXPECT_FALSE(tokens.is_bos_in_front);
  EXPECT_THAT(tokens.eos, ElementsAre(2));
  const SpecialTokens none = find_special_tokens(tokenizer, tokenizer.vocab_size(), Json::object(), "");
  EXPECT_EQ(none.bos, std::nullopt);
  EXPECT_THAT(none.eos, ElementsAre());
  EXPECT_THAT(none.all, ElementsAre(0, 1, 2));
}

TEST_F(SpecialTokensTest, PaddingAndUnknownTokensAreNeverDrawn) {
  const Tokenizer tokenizer = golden("prepend");  // <unk> 0
  const auto size = static_cast<Token>(tokenizer.vocab_size());
  const SpecialTokens tokens = find_special_tokens(tokenizer, size + 2, Json::object(), "");
  EXPECT_THAT(tokens.all, ElementsAre(0, 1, 2, size, size + 1));
  // A SentencePiece model has no padding, and control, unknown and unused pieces.
  const Tokenizer pieces =
      byte_fallback_model({{"a"}, {"x", PieceType::kUnused}, {"y", PieceType::kControl}}).tokenizer();
  const SpecialTokens of_pieces = find_special_tokens(pieces, pieces.vocab_size(), Json::object(), "");
  EXPECT_EQ(of_pieces.bos, kBosToken);
  EXPECT_TRUE(of_pieces.is_bos_in_front);
  EXPECT_THAT(of_pieces.all, ElementsAre(0, 1, 2, kFirstTextToken + 1, kFirstTextToken + 2));
}

TEST_F(SpecialTokensTest, TokensThatNobodyHasAreRefused) {
  const Tokenizer tokenizer = golden("byte_level");
  const int64_t size = tokenizer.vocab_size();
  for (const Json& id : {Json(-1), Json(size), Json("x"), Json(1.5), Json::object(), Json{1, size}, Json(true),
                         Json(std::vector<int>(65))})
    for (const char* key : {"bos_token_id", "eos_token_id"})
      EXPECT_THAT(refusal(tokenizer, {{key, id}}, size),
                  AllOf(HasSubstr("config.json"), HasSubstr(key), HasSubstr("must be a token from 0 to"),
                        HasSubstr(id.dump().substr(0, 100))));
  for (const char* value : {"3", "[\"<s>\"]", "{}", "{\"content\": 1}", "\"nobody\"", "\"\"", "true"})
    for (const char* key : {"bos_token", "eos_token"}) {
      write_config(std::string("{\"") + key + "\": " + value + "}");
      EXPECT_THAT(refusal(tokenizer, Json::object(), size), AllOf(HasSubstr("tokenizer_config.json"), HasSubstr(key)));
    }
  for (const char* text : {"", "[]", "{\"bos_token\": ", "{\"bos_token\": 1, \"bos_token\": 2}", "null", "\xff"}) {
    write_config(text);
    EXPECT_THAT(refusal(tokenizer, Json::object(), size), HasSubstr("tokenizer_config.json")) << text;
  }
  write_config(R"({"bos_token": "</s>"})");
  EXPECT_THAT(refusal(tokenizer, Json::object(), 2), HasSubstr("none of the model's tokens"));
  write_config("{}");
  EXPECT_THAT(refusal(golden("split"), Json::object(), 1), HasSubstr("token 1 ('<s>')"));
}

TEST_F(SpecialTokensTest, TheConfigLiesBesideTheTokenizer) {
  EXPECT_EQ(tokenizer_config_beside(""), "");
  EXPECT_EQ(tokenizer_config_beside(folder_.file("tokenizer.json")), "");
  write_config("{}");
  EXPECT_EQ(tokenizer_config_beside(folder_.file("tokenizer.json")), folder_.file("tokenizer_config.json"));
}

}  // namespace
}  // namespace thimble::special_tokens_test
