// hostile_tokenizer_test.cpp: tokenizer.json files made to do harm: each is a FormatError, or a tokenizer that works.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "eval/text/byte_table.h"
#include "eval/tokenizers/bpe_tokenizer.h"
#include "eval/tokenizers/tokenizer.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace thimble::hostile_tokenizer_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A byte-level tokenizer, and one of characters with byte fallback; each has every step of its kind.
const char* const kByteLevel = R"_({
  "version": "1.0", "truncation": null, "padding": null,
  "added_tokens": [
    {"id": 0, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
     "special": true},
    {"id": 7, "content": "<w>", "single_word": true, "lstrip": true, "rstrip": true, "normalized": true,
     "special": false}],
  "normalizer": {"type": "Sequence", "normalizers": [
    {"type": "NFKC"}, {"type": "Replace", "pattern": {"Regex": "x+"}, "content": "t"}]},
  "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": {"Regex": "\\p{L}+|\\s+(?!\\S)"}, "behavior": "Isolated", "invert": false},
    {"type": "Digits", "individual_digits": true},
    {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}]},
  "post_processor": {"type": "TemplateProcessing", "single": [
    {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
  "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
  "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
    "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": true,
    "vocab": {"<s>": 0, "t": 1, "h": 2, "e": 3, "Ġ": 4, "th": 5, "the": 6},
    "merges": [["t", "h"], "th e"]}})_";
const char* const kCharacters = R"_({
  "added_tokens": [{"id": 0, "content": "<s>", "special": true}],
  "normalizer": {"type": "Sequence", "normalizers": [
    {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
  "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": true},
  "decoder": {"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
  "model": {"unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
    "vocab": {"<s>": 0, "<unk>": 1, "▁": 2, "t": 3, "h": 4, "th": 5, "<0x65>": 6, "<0xC3>": 7},
    "merges": ["t h"]}})_";

Json base(const char* text) { return parse_json(as_bytes_of(text), "base"); }

// The error, or empty for a tokenizer that works on a few texts, or says why it does not.
std::string error_of_file(std::string_view file) {
  try {
    const Tokenizer tokenizer(as_bytes_of(file), "t.json");
    const ByteTable table(tokenizer);
    for (const char* text : {"", "the <w> the12", "  xx\n\u00fc\u6d77<s>", "\U0001f600\u0301"}) {
      try {
        const std::vector<Token> tokens = tokenizer.encode(text);
        for (Token token : tokens) EXPECT_LT(token, tokenizer.vocab_size());
        tokenizer.decode(tokens);
        EXPECT_GE(table.bytes_of_targets(tokens), 0);
      } catch (const FormatError& error) {
        EXPECT_THAT(error.what(), HasSubstr("t.json"));
      }
    }
    return "";
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), HasSubstr("t.json"));
    return error.what();
  }
}
std::string error_of(const Json& json) { return error_of_file(json.dump()); }

TEST(HostileTokenizer, TheBasesAreTokenizers) {
  for (const char* text : {kByteLevel, kCharacters}) EXPECT_EQ(error_of_file(text), "");
}

// Every value of the files becomes every kind of value.
TEST(HostileTokenizer, ValuesOfOtherKinds) {
  Json nested = Json::array();
  for (int depth = 0; depth < 40; ++depth) nested = Json::array({nested});
  const Json values[] = {nullptr,
                         true,
                         -1,
                         0,
                         1.5,
                         1e300,
                         uint64_t{1} << 63,
                         "",
                         "x",
                         "▁",
                         "Sequence",
                         Json::array(),
                         Json::object(),
                         nested,
                         Json{{"type", "Sequence"}},
                         Json{{"x", 1}},
                         std::string(100'000, 'a'),
                         Json::array({Json::array({1})})};
  size_t cases = 0, refused = 0;
  for (const char* text : {kByteLevel, kCharacters}) {
    const Json whole = base(text);
    std::vector<Json::json_pointer> places;
    auto visit = [&](const auto& self, const Json& value, const Json::json_pointer& at) -> void {
      places.push_back(at);
      if (value.is_object())
        for (const auto& [key, inner] : value.items()) self(self, inner, at / key);
      if (value.is_array())
        for (size_t i = 0; i < value.size(); ++i) self(self, value[i], at / i);
    };
    visit(visit, whole, Json::json_pointer());
    for (const Json::json_pointer& place : places)
      for (const Json& value : values) {
        SCOPED_TRACE(place.to_string() + " = " + value.dump().substr(0, 40));
        Json changed = whole;
        changed[place] = value;
        refused += error_of(changed).empty() ? 0 : 1;
        ++cases;
      }
  }
  EXPECT_GT(cases, 1000u);
  EXPECT_GT(refused * 2, cases);
}

// Every key left out, and one too many in every object.
TEST(HostileTokenizer, KeysThatAreMissingOrTooMany) {
  for (const char* text : {kByteLevel, kCharacters}) {
    const Json whole = base(text);
    const Json flat = whole.flatten();
    for (const auto& [place, value] : flat.items()) {
      const Json::json_pointer pointer(place);
      Json without = whole;
      Json& parent = without[pointer.parent_pointer()];
      if (!parent.is_object()) continue;
      SCOPED_TRACE(place);
      parent.erase(pointer.back());
      error_of(without);
      Json more = whole;
      more[pointer.parent_pointer()]["surprise"] = "\x1b[31m";
      error_of(more);
    }
  }
}

struct Refused {
  const char* place;
  Json value;
  const char* message;
};

TEST(HostileTokenizer, NumbersAndTextsBeyondTheLimits) {
  Json many = Json::array(), far = Json::object(), wide = Json::object();
  for (int i = 0; i < 17; ++i) many.push_back({{"type", "NFC"}});
  far["<s>"] = 0;
  far["t"] = kMostTokens - 1;
  wide[std::string(4097, 't')] = 1;
  const Refused cases[] = {
      {"/model/vocab/z", kMostTokens, "'z' has the id 1048576; allowed are 0 to 1048575"},
      {"/model/vocab/z", uint64_t{1} << 31, "has the id 2147483648"},
      {"/model/vocab/z", uint64_t{1} << 63, "has the id 9223372036854775808"},
      {"/model/vocab/z", -1, "has the id -1"},
      {"/model/vocab/z", 1.0, "has the id 1.0"},
      {"/model/vocab/z", 1e300, "has the id 1e+300"},
      {"/model/vocab/z", "1", "has the id \"1\""},
      {"/model/vocab/z", nullptr, "has the id null"},
      {"/model/vocab/z", 6, "the id 6 is of two texts, 'the' and 'z'"},
      {"/model/vocab", far, "more than half are missing"},
      {"/model/vocab", wide, "has 4097 B, at most 4096"},
      {"/model/vocab", Json::object(), "\"vocab\" is {}"},
      {"/model/merges/0", Json::array({"t", "h", "e"}), "is no pair of texts"},
      {"/model/merges/0", Json::array({"", "t"}), "is no pair of texts"},
      {"/model/merges/0", " t", "is no pair of texts"},
      {"/model/merges/0", "t ", "is no pair of texts"},
      {"/model/merges/0", "t h e", "is no pair of texts"},
      {"/model/merges/0", "the the", "joins or makes a text that is not in the vocabulary"},
      {"/model/merges/0", std::string(1 << 20, 't'), "is no pair of texts"},
      {"/model/merges", "t h", "\"merges\" is \"t h\"; known: an array"},
      {"/added_tokens/0/content", std::string(1025, 'a'), "a text of 1 to 1024 B"},
      {"/added_tokens/0/content", std::string(1 << 20, 'a'), "a text of 1 to 1024 B"},
      {"/added_tokens/0/content", "", "a text of 1 to 1024 B"},
      {"/added_tokens/0/content", 0, "\"content\" is 0; known: a text"},
      {"/added_tokens/0/content", "<w>", "a text that no other added token has"},
      {"/added_tokens/0/content", "t", "'t' has the id 0, the vocabulary says 1"},
      {"/added_tokens/1/id", 0, "an id that no other added token has"},
      {"/added_tokens/1/id", 3, "'<w>' has the id 3, the vocabulary says that 'e' has it"},
      {"/added_tokens/1/id", 100'000, "the id 100000 is far above"},
      {"/added_tokens/1/id", kMostTokens, "\"id\" is 1048576; known: 0 to 1048575"},
      {"/added_tokens/1/id", uint64_t{1} << 32, "\"id\" is 4294967296"},
      {"/added_tokens/1/id", -7, "\"id\" is -7"},
      {"/added_tokens/1/id", 7.5, "\"id\" is 7.5"},
      {"/normalizer/normalizers", many, "\"normalizers\" is an array; known: an array of at most 16"},
      {"/normalizer/normalizers/0", {{"type", "Sequence"}, {"normalizers", Json::array()}}, "\"type\" is \"Sequence\""},
      {"/normalizer/normalizers/1/content", std::string(17, 'x'), "at most 16 B"},
      {"/normalizer/normalizers/1/pattern", {{"String", ""}}, "a pattern that is not empty"},
      {"/normalizer/normalizers/1/pattern", {{"Regex", "a*"}}, "can match nothing"},
      {"/pre_tokenizer/pretokenizers/0/pattern", {{"Regex", std::string(4097, 'a')}}, "4097 B"},
      {"/pre_tokenizer/pretokenizers/0/pattern", {{"Regex", "a"}, {"String", "a"}}, "\"String\" is not known"},
      {"/pre_tokenizer/pretokenizers/2", {{"type", "ByteLevel"}, {"use_regex", "yes"}}, "\"use_regex\" is \"yes\""},
      {"/pre_tokenizer/pretokenizers/3", {{"type", "ByteLevel"}}, "nothing after ByteLevel"},
      {"/post_processor/single/0/SpecialToken/id", "<w>", "SpecialToken of a special added token"},
      {"/post_processor/single/0/SpecialToken", 0, "SpecialToken with an id"},
      {"/post_processor/single", 0, "\"single\" is 0"},
      {"/decoder/type", "Metaspaces", "\"type\" is \"Metaspaces\"; known: ByteLevel"},
  };
  for (const Refused& hostile : cases) {
    SCOPED_TRACE(hostile.place);
    Json json = base(kByteLevel);
    json[Json::json_pointer(hostile.place)] = hostile.value;
    EXPECT_THAT(error_of(json), HasSubstr(hostile.message));
  }
}

TEST(HostileTokenizer, JsonThatIsNone) {
  const std::string good = base(kByteLevel).dump();
  const auto with_vocabulary = [](const std::string& entries) {
    return R"({"pre_tokenizer":{"type":"ByteLevel"},"model":{"vocab":{)" + entries + R"(},"merges":[]}})";
  };
  EXPECT_EQ(error_of_file(with_vocabulary(R"("a":0)")), "");
  for (const std::string& file :
       {std::string(), std::string("{"), std::string("[]"), std::string("null"), good + "x", good + good,
        with_vocabulary(R"("a":0,"a":1)"), with_vocabulary(R"("a":0,)"), with_vocabulary(R"("\ud800":0)"),
        with_vocabulary("\"\xff\":0"), with_vocabulary("\"\xed\xa0\x80\":0"), with_vocabulary(R"("a":00)"),
        with_vocabulary(R"("a":NaN)"), with_vocabulary(R"("a":99999999999999999999999)"), with_vocabulary("\"a\n\":0"),
        "{\"x\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}",
        "{\"x\":" + std::string(1'000'000, '['), std::string("\xef\xbb\xbf{}"), std::string(3, '\0')})
    EXPECT_NE(error_of_file(file), "") << file.substr(0, 60);
  std::string deep = "0";
  for (int depth = 0; depth < kMaxJsonDepth; ++depth) deep = "{\"type\":\"Sequence\",\"processors\":[" + deep + "]}";
  EXPECT_THAT(error_of_file("{\"post_processor\":" + deep + "}"), HasSubstr("nest"));
}

TEST(HostileTokenizer, AFileThatIsTooLargeIsNotParsed) {
  std::string file(kMaxTokenizerJsonBytes + 1, ' ');
  file[0] = '{';
  EXPECT_THAT(error_of_file(file), HasSubstr("67108865 B, a tokenizer.json has at most 67108864 B"));
}

TEST(HostileTokenizer, MergesInCirclesAndTwiceEnd) {
  Json json = base(kByteLevel);
  json["model"]["vocab"] = {{"<s>", 0}, {"t", 1}, {"tt", 2}, {"ttt", 3}, {"tttt", 4}, {"Ġ", 5}};
  json["model"]["merges"] = {"t tt", "tt t", "t t", "tt tt", "ttt t", "t ttt", "t t"};
  for (int i = 0; i < 1000; ++i) json["model"]["merges"].push_back("t t");
  json["model"]["ignore_merges"] = false;
  EXPECT_EQ(error_of(json), "");
  const Tokenizer tokenizer(as_bytes_of(json.dump()), "t.json");
  const std::string text(100'000, 't');
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
}

// Each of them finds something in one of the texts, is refused, or gives up within a second or so.
TEST(HostileTokenizer, ExpressionsThatTakeForever) {
  const char* const expressions[] = {"(a+)+[bc]",
                                     "(a|a)*[bc]|d",
                                     "(a|aa)+[bc]",
                                     "(a*)*[bc]|d",
                                     "(?:a+a+)+[bc]",
                                     "(?:.*a){12}[bc]|d",
                                     "(?:a?){25}a{25}",
                                     "(?:(?:a+)+)+[bc]",
                                     "(?=(a+)+[bc])a",
                                     "(?!(a+)+[bc])d",
                                     "(?:a{1,100}){1,100}[bc]",
                                     "(?i:(a+)+)[bc]",
                                     "[^b]*[bc]|d",
                                     "\\s*[bc]|d",
                                     "(?:\\p{L}+\\s?)+[bc]",
                                     "(?:\\p{L}|\\p{N}|a)+[bc]",
                                     "a{65536}",
                                     "a{1,65535}[bc]",
                                     "(?:a{1000}){1000}",
                                     "((((((((((a+)+)+)+)+)+)+)+)+)+)[bc]",
                                     "(a)(a)(a)\\3",
                                     "(?R)",
                                     "(?1)(a)",
                                     "a(?<=a+)",
                                     "(?>a+)+b",
                                     "\\X+",
                                     "\\C",
                                     "(*LIMIT_MATCH=99999999)a",
                                     "(*NO_JIT)a",
                                     "a(?#",
                                     "[[:alpha:]]+",
                                     "[^",
                                     "a**",
                                     "\\Q",
                                     "(?|a|b)",
                                     "(?(1)a|b)",
                                     "(?P<n>a)",
                                     "(?&n)",
                                     "\\K",
                                     "(?C1)a",
                                     "\\x{110000}",
                                     "\\u{61}",
                                     "\\o{141}",
                                     "\\cA",
                                     "\\N{U+61}",
                                     "\\g{1}",
                                     "\\R",
                                     "\\v",
                                     "\\H",
                                     "\\B",
                                     "\\A",
                                     "\\z",
                                     "\\G",
                                     "\\pL",
                                     "\\p{Lu",
                                     "\\p{}",
                                     "\\p{Script=Han}"};
  const std::string texts[] = {std::string(40, 'a') + "!", std::string(20'000, 'a'), std::string(5'000, ' ') + "x"};
  size_t refused = 0, gave_up = 0;
  for (const char* expression : expressions) {
    SCOPED_TRACE(expression);
    Json json = base(kByteLevel);
    json["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"Regex", expression}};
    std::optional<Tokenizer> tokenizer;
    try {
      tokenizer.emplace(as_bytes_of(json.dump()), "t.json");
    } catch (const FormatError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("t.json: pre_tokenizer 0"), HasSubstr("regular expression")));
      ++refused;
      continue;
    }
    for (const std::string& text : texts) try {
        tokenizer->encode(text);
      } catch (const FormatError& error) {
        EXPECT_THAT(error.what(), HasSubstr("cannot be matched at byte"));
        ++gave_up;
      }
  }
  EXPECT_GT(refused, 30u);
  EXPECT_GT(gave_up, 5u);
}

// As many as a text may be taken apart by, beside each other and within each other.
TEST(HostileTokenizer, ManyAddedTokens) {
  Json json = base(kByteLevel);
  for (int i = 0; i < 20'000; ++i)
    json["added_tokens"].push_back({{"id", 8 + i},
                                    {"content", std::string(1 + i % 900, 'a') + std::to_string(i)},
                                    {"lstrip", true},
                                    {"rstrip", true}});
  const Tokenizer tokenizer(as_bytes_of(json.dump()), "t.json");
  EXPECT_EQ(tokenizer.vocab_size(), 20'008);
  EXPECT_EQ(tokenizer.encode("a0").back(), 8);
  for (const std::string& text : {std::string(1'000, 'a'), std::string(200'000, 'a'), std::string(50'000, ' ')}) try {
      tokenizer.encode(text);
    } catch (const FormatError& error) {
      EXPECT_THAT(error.what(), HasSubstr("t.json: finding added tokens takes too long"));
      EXPECT_EQ(text.size(), 200'000);
    }
}

}  // namespace
}  // namespace thimble::hostile_tokenizer_test
