// json_test.cpp: bounded JSON: depth, duplicates, broken texts, and the canonical form.
#include "runtime/base/json.h"

#include <gtest/gtest.h>

#include "tests/runtime/base/error_matcher.h"

namespace thimble::json_test {
namespace {

Json parse(std::string_view text) { return parse_json(as_bytes_of(text), "config.json"); }

std::string repeat(std::string_view text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

// `depth` arrays or objects, one inside the other, around `leaf`.
std::string nested_arrays(int depth, std::string_view leaf) {
  return repeat("[", depth) + std::string(leaf) + repeat("]", depth);
}
std::string nested_objects(int depth, std::string_view leaf) {
  return repeat("{\"a\":", depth - 1) + "{" + std::string(leaf) + "}" + repeat("}", depth - 1);
}

TEST(Json, ParsesEveryKindOfValue) {
  Json json = parse(R"( {"a": [1, -2, 3.5, true, false, null, "t\u00e9\ud83d\ude00"], "b": {}} )");
  EXPECT_EQ(json.at("a").at(1), -2);
  EXPECT_EQ(json.at("a").at(2), 3.5);
  EXPECT_EQ(json.at("a").at(6), "t\xC3\xA9\xF0\x9F\x98\x80");
  EXPECT_TRUE(json.at("b").empty());
}

TEST(Json, SyntaxErrorsNameTheFile) {
  for (std::string_view text : {"", " ", "{", "[1,]", "{\"a\":1,}", "{\"a\"}", "nul", "01", "+1", "NaN", "Infinity",
                                "'a'", "\"a", "1 2", "{}}", "// comment\n1", "\"\\x\"", "\"\t\"", "{1:2}"})
    expect_error<FormatError>([&] { parse(text); }, {"config.json: ", "not valid JSON"});
}

TEST(Json, NumbersOutOfRangeAreErrors) {
  expect_error<FormatError>([] { parse("1e999"); }, {"config.json"});
  EXPECT_EQ(parse("18446744073709551615"), std::numeric_limits<uint64_t>::max());
}

TEST(Json, ANulByteIsAnError) {
  EXPECT_THROW(parse(std::string_view("{}\0", 3)), FormatError);
  EXPECT_THROW(parse(std::string_view("\"a\0b\"", 5)), FormatError);
}

TEST(Json, InvalidUtf8IsAnError) {
  for (std::string_view text : {"\"\xff\"", "\"\xc3\"", "\"\xc0\xaf\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"",
                                "\"\xe6\x97\"", "{\"\x80\":1}", R"("\ud800")", R"("\udc00x")"})
    EXPECT_THROW(parse(text), FormatError) << text;
}

TEST(Json, NestingUpToTheLimitParses) {
  EXPECT_NO_THROW(parse(nested_arrays(kMaxJsonDepth, "")));
  EXPECT_NO_THROW(parse(nested_arrays(kMaxJsonDepth, "1")));
  EXPECT_NO_THROW(parse(nested_objects(kMaxJsonDepth, "")));
  EXPECT_NO_THROW(parse(nested_objects(kMaxJsonDepth, "\"b\":1")));
}

TEST(Json, NestingAboveTheLimitIsAnError) {
  for (int depth : {kMaxJsonDepth + 1, 1'000'000}) {
    for (const std::string& text : {nested_arrays(depth, ""), nested_arrays(depth, "1"), nested_objects(depth, ""),
                                    nested_objects(depth, "\"b\":1"), repeat("[", depth)})
      expect_error<FormatError>([&] { parse(text); }, {"config.json", "nested deeper than 64"});
  }
}

TEST(Json, DuplicateKeysAreErrors) {
  expect_error<FormatError>([] { parse(R"({"a":1,"b":2,"a":1})"); }, {"config.json", "'a' appears twice"});
  expect_error<FormatError>([] { parse(R"({"x":[{"deep":1,"deep":2}]})"); }, {"'deep' appears twice"});
  expect_error<FormatError>([] { parse(R"({"a":{"c":1},"a":2})"); }, {"'a' appears twice"});
  expect_error<FormatError>([] { parse(R"({"é":1,"\u00e9":2})"); }, {"appears twice"});
}

TEST(Json, EqualKeysOfDifferentObjectsAreFine) {
  Json json = parse(R"({"a":{"a":{"a":1}},"b":[{"a":1},{"a":2}]})");
  EXPECT_EQ(json.at("b").at(1).at("a"), 2);
}

// With the library's own parser callback this takes a time that grows with the square of the number of objects: days.
TEST(Json, AMillionObjectsParseInLinearTime) {
  constexpr int kObjects = 1'000'000;
  EXPECT_EQ(parse("[" + repeat("{},", kObjects - 1) + "{}]").size(), kObjects);
}

TEST(Json, CanonicalTextDoesNotDependOnOrderOrSpaces) {
  EXPECT_EQ(canonical_json(parse(" { \"b\" : [ 1 , 2.5 ] , \"a\" : \"x\" } ")), R"({"a":"x","b":[1,2.5]})");
  EXPECT_EQ(canonical_json(parse(R"({"b":1,"a":2})")), canonical_json(parse(R"({"a":2,"b":1})")));
}

TEST(Json, CanonicalNumbersSurviveARoundTrip) {
  for (double value : {0.1, 1.0 / 3, 1e-300, 22081.79, -0.0, 1e22}) {
    std::string text = canonical_json(Json(value));
    EXPECT_EQ(parse(text).get<double>(), value) << text;
    EXPECT_EQ(canonical_json(parse(text)), text);
  }
}

}  // namespace
}  // namespace thimble::json_test
