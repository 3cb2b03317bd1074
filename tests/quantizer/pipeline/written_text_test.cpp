// written_text_test.cpp: what the folder of a model says of the text that it writes for itself.
#include "quantizer/pipeline/written_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <optional>
#include <set>

#include "eval/text/script.h"
#include "eval/tokenizers/tokenizer.h"
#include "quantizer/formats/safetensors.h"
#include "runtime/base/error.h"
#include "runtime/base/file.h"
#include "tests/runtime/base/error_matcher.h"
#include "tests/runtime/base/temporary_folder.h"
#include "tests/runtime/families/llama/random_llama.h"
#include "tests/support/test_files.h"

namespace thimble::written_text_test {
namespace {

constexpr int64_t kVocabulary = 400;  // of the model; the tokenizer's is 363

class WrittenText : public ::testing::Test {
 protected:
  WrittenText() {
    LlamaConfig config = small_llama_config("llama");
    config.vocab_size = kVocabulary;
    const OwnedTensors tensors = random_llama_tensors(config);
    write_safetensors(folder_.file("model.safetensors"), views_of(tensors), {});
    write("config.json", to_json(config).dump());
  }

  void write(const std::string& name, const std::string& contents) const {
    std::ofstream(folder_.file(name), std::ios::binary) << contents;
  }
  void give_tokenizer() const {
    const MappedFile golden(source_file("tests/eval/tokenizers/golden/byte_level.json"));
    write("tokenizer.json", std::string(as_text(golden.bytes())));
  }
  TextScript script() const { return script_for(OpenedCheckpoint(folder_.path(), ""), options_); }
  Tokenizer tokenizer() const { return Tokenizer::load(folder_.file("tokenizer.json")); }
  static bool is_drawn(Token token) { return token == TextScript::kDrawn; }

  TemporaryFolder folder_;
  const CalibrationOptions options_{.sequences = 6, .length = 500, .seed = 3};
};

TEST_F(WrittenText, WithoutATokenizerBeginsAnywhere) {
  const TextScript uniform = uniform_script(kVocabulary, options_), found = script();
  EXPECT_EQ(found.given, uniform.given);
  EXPECT_TRUE(found.never_drawn.empty());
  EXPECT_GT(std::set(uniform.given.begin(), uniform.given.end()).size(), 2u);
}

TEST_F(WrittenText, BeginsAsDocumentsDoAndHoldsTextAlone) {
  give_tokenizer();
  const TextScript found = script();
  std::set<Token> openings;
  for (int64_t s = 0; s < options_.sequences; ++s) {
    const auto text = found.sequences(s, 1);
    EXPECT_EQ(text[0], 0);  // <|endoftext|>
    EXPECT_TRUE(std::ranges::all_of(text.subspan(2), is_drawn));
    EXPECT_FALSE(std::ranges::binary_search(found.never_drawn, text[1]));
    EXPECT_GE(text[1], 0);
    EXPECT_LT(text[1], kVocabulary);
    openings.insert(text[1]);
  }
  EXPECT_GT(openings.size(), 3u);
  std::vector<Token> expected = {0, 1, 2};
  for (Token padding = 363; padding < kVocabulary; ++padding) expected.push_back(padding);
  EXPECT_EQ(found.never_drawn, expected);
  write("tokenizer_config.json", R"({"eos_token": "!"})");
  expected.insert(expected.begin() + 3, 3);
  EXPECT_EQ(script().never_drawn, expected);
}

// A quarter uniform over the tokens, the rest over scripts, two fifths of that in Latin beyond ASCII: docs/method.md.
TEST_F(WrittenText, OpensInEveryScriptOfItsVocabulary) {
  give_tokenizer();
  constexpr int kTexts = 600;
  const TextScript found =
      script_for(OpenedCheckpoint(folder_.path(), ""), {.sequences = kTexts, .length = 4, .seed = 3});
  const Tokenizer known = tokenizer();
  std::map<std::optional<Script>, int> tokens, openings;
  int token_count = 0;
  for (Token token = 0; token < known.vocab_size(); ++token) {
    if (std::ranges::binary_search(found.never_drawn, token)) continue;
    ++tokens[script_of(known.text_of(token))];
    ++token_count;
  }
  ASSERT_EQ(tokens[Script::kCyrillic], 11);
  ASSERT_EQ(tokens[Script::kHan], 1);
  ASSERT_GT(tokens[Script::kLatinBeyondAscii], 0);
  for (int64_t s = 0; s < kTexts; ++s) ++openings[script_of(known.text_of(found.sequences(s, 1)[1]))];
  const auto scripts = static_cast<double>(tokens.size() - tokens.count(std::nullopt));
  for (const auto& [script, count] : tokens) {
    double share = 0.25 * count / token_count;
    if (script) share += 0.75 * 0.6 / scripts;
    if (script == Script::kLatinBeyondAscii) share += 0.75 * 0.4;
    EXPECT_NEAR(openings[script], kTexts * share, 4 * std::sqrt(kTexts * share)) << (script ? int(*script) : -1);
  }
}

TEST_F(WrittenText, IsAConversationEveryOtherTimeWhereTheFolderHasAChatTemplate) {
  give_tokenizer();
  write("tokenizer_config.json", R"({"chat_template": "{% for m in messages %}[INST] {{ m }} [/INST]{% endfor %}"})");
  const TextScript found = script();
  const std::vector<Token> user = tokenizer().encode("[INST] "), answer = tokenizer().encode(" [/INST]");
  std::set<size_t> places;
  for (int64_t s = 0; s < options_.sequences; ++s) {
    const auto text = found.sequences(s, 1);
    SCOPED_TRACE(s);
    if (s % 2 == 0) {
      EXPECT_EQ(std::ranges::count_if(text, is_drawn), options_.length - 2);
      continue;
    }
    EXPECT_TRUE(std::ranges::equal(text.first(user.size()), user));
    const auto turn = std::search(text.begin(), text.end(), answer.begin(), answer.end());
    ASSERT_NE(turn, text.end());
    const auto place = static_cast<size_t>(turn - text.begin());
    EXPECT_FALSE(is_drawn(text[user.size()]));
    EXPECT_FALSE(std::ranges::binary_search(found.never_drawn, text[user.size()]));
    EXPECT_TRUE(std::ranges::all_of(text.subspan(user.size() + 1, place - user.size() - 1), is_drawn));
    EXPECT_GE(place - user.size(), 16u);
    EXPECT_LE(place - user.size(), 96u);
    places.insert(place);
    // And the answer, after which the user goes on.
    const auto rest = text.subspan(place + answer.size());
    const auto end = std::ranges::find_if_not(rest, is_drawn);
    ASSERT_NE(end, rest.end());
    EXPECT_GE(end - rest.begin(), 64);
    EXPECT_LE(end - rest.begin(), 320);
  }
  EXPECT_GT(places.size(), 1u);
  EXPECT_EQ(script().given, found.given);
}

TEST_F(WrittenText, FindsTheTemplateWhereverFoldersHaveIt) {
  give_tokenizer();
  auto talks = [&] { return std::ranges::count_if(script().sequences(1, 1), is_drawn) < options_.length - 2; };
  write("tokenizer_config.json", R"({"chat_template": null})");
  EXPECT_FALSE(talks());
  write("tokenizer_config.json", R"({"chat_template": "{{ messages }}"})");
  EXPECT_FALSE(talks());
  write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "[INST]"}]})");
  EXPECT_FALSE(talks());
  write("tokenizer_config.json", R"({"chat_template": [{"name": "x"}, {"name": "default", "template": "[INST]"}]})");
  EXPECT_TRUE(talks());
  write("tokenizer_config.json", "{}");
  EXPECT_FALSE(talks());
  write("chat_template.jinja", "<|user|>\n");
  EXPECT_TRUE(talks());
}

TEST_F(WrittenText, RefusesWhatIsDamaged) {
  give_tokenizer();
  write("tokenizer_config.json", R"({"chat_template": 3})");
  expect_error<FormatError>([&] { script(); }, {"tokenizer_config.json", "'chat_template'", "neither"});
  write("tokenizer_config.json", "{");
  expect_error<FormatError>([&] { script(); }, {"tokenizer_config.json"});
  write("tokenizer_config.json", R"({"bos_token": "<nowhere>"})");
  expect_error<FormatError>([&] { script(); }, {"tokenizer_config.json", "<nowhere>"});
}

}  // namespace
}  // namespace thimble::written_text_test
