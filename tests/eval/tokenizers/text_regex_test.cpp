// text_regex_test.cpp: regular expressions of tokenizer files: what they match, what is refused, and when they give up.
#include "eval/tokenizers/text_regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/base/error.h"

namespace thimble::text_regex_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> found_in(const std::string& expression, const std::string& text) {
  std::vector<std::string> found;
  for (const TextSpan& match : TextRegex(expression, "t.json", "Split").matches(text, MatchTime(text.size())))
    found.push_back(text.substr(match.begin, match.end - match.begin));
  return found;
}

std::string refusal_of(const std::string& expression) {
  try {
    TextRegex(expression, "t.json", "Split");
  } catch (const FormatError& error) {
    return error.what();
  }
  ADD_FAILURE() << expression << " was taken";
  return {};
}

TEST(TextRegex, ClassesAreUnicode) {
  EXPECT_THAT(found_in(R"(\p{L}+|\p{N})", "Küste 海٣½ x1"), ElementsAre("Küste", "海", "٣", "½", "x", "1"));
  EXPECT_THAT(found_in(R"(\s+)", "a\u00a0 b\u3000\u2028c\u180ed\u200be"), ElementsAre("\u00a0 ", "\u3000\u2028"));
  EXPECT_THAT(found_in(R"([^\s\p{L}]+)", "ab\u0301c \U0001f600"), ElementsAre("\u0301", "\U0001f600"));
}

TEST(TextRegex, LooksAheadAndTakesPossessively) {
  EXPECT_THAT(found_in(R"(\s+(?!\S)|\s+)", "a   b \n"), ElementsAre("  ", " ", " \n"));
  EXPECT_THAT(found_in(R"((?i:'s|'ll))", "it'S they'LL"), ElementsAre("'S", "'LL"));
  EXPECT_THAT(found_in(R"(a++b|a)", "aab aac"), ElementsAre("aab", "a", "a"));
}

TEST(TextRegex, WhatTheTwoLibrariesReadDifferentlyIsRefused) {
  for (const char* expression :
       {R"(\w+)", R"(\bx)", R"(\hx)",     R"((a)\1)",  "^a",    "a$",    "(?<=a)b", "(?>a)",   "(?R)",  "(*UTF)a",
        "[a&&b]", "[[a]b]", R"(\p{Han})", R"(\p{^L})", "a{2}+", "a{,2}", R"(\Kx)",  "(?<n>a)", "(?C)a", "[]a]"})
    EXPECT_THAT(refusal_of(expression), HasSubstr("which is not known; known are")) << expression;
}

TEST(TextRegex, BrokenAndEmptyOnesAreRefused) {
  EXPECT_THAT(refusal_of("(a"), HasSubstr("t.json: Split: the regular expression '(a' is none: missing closing"));
  EXPECT_THAT(refusal_of("a*"), HasSubstr("can match nothing"));
  EXPECT_THAT(refusal_of("a|"), HasSubstr("can match nothing"));
  EXPECT_THAT(refusal_of(""), HasSubstr("0 B, allowed are 1 to 4096"));
  EXPECT_THAT(refusal_of(std::string(TextRegex::kMostBytes + 1, 'a')), HasSubstr("4097 B"));
  EXPECT_THAT(refusal_of("((((a{999}){999}){999}){999})"), HasSubstr("is none"));
  EXPECT_THAT(refusal_of("a\\"), HasSubstr("not known"));
  EXPECT_THAT(refusal_of("\\p"), HasSubstr("not known"));
  EXPECT_THAT(refusal_of("\\p{L"), HasSubstr("not known"));
}

TEST(TextRegex, ACatastrophicOneGivesUp) {
  const TextRegex regex("(a+a+)+b", "t.json", "Split");
  try {
    regex.matches(std::string(64, 'a') + "cb", MatchTime(66));
    FAIL();
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), HasSubstr("cannot be matched at byte 0 of a text: match limit exceeded"));
  }
}

// No single match takes many steps.
TEST(TextRegex, SlowOnesGiveUp) {
  const std::string text(150'000, 'a');
  for (const char* expression : {"[^b]*b|.", "(?:a{1,40}){3}[bc]", "(?:a?){30}a{30}[bc]", "(?=[^b]*[bc])a|a"}) {
    const TextRegex regex(expression, "t.json", "Split");
    try {
      regex.matches(text, MatchTime(text.size()));
      ADD_FAILURE() << expression;
    } catch (const FormatError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("cannot be matched at byte"),
                                      AnyOf(HasSubstr("it takes too long"), HasSubstr("match limit exceeded"))));
    }
  }
}

TEST(TextRegex, MatchesFarApartAreFound) {
  const std::string gap(10'000, 'x'), wide = gap + "\u6d77" + gap;
  EXPECT_THAT(found_in("a", gap + "a" + gap + gap + "a"), ElementsAre("a", "a"));
  EXPECT_THAT(found_in("\\p{Lo}", "y" + wide + "\u6d77" + wide), ElementsAre("\u6d77", "\u6d77", "\u6d77"));
  std::string run;
  for (int i = 0; i < 5000; ++i) run += "\u00e9";
  EXPECT_THAT(found_in("é+b", run + "b"), ElementsAre(run + "b"));
  EXPECT_THAT(found_in("b", run + "b"), ElementsAre("b"));
}

TEST(TextRegex, ALongRunNeedsNoDeepStack) {
  const std::string text(1 << 18, 'x');
  EXPECT_THAT(found_in("(?:x|y)+", text), ElementsAre(text));
}

}  // namespace
}  // namespace thimble::text_regex_test
