// utf8_test.cpp: the edges of each length class of UTF-8.
#include "eval/tokenizers/utf8.h"

#include <gtest/gtest.h>

namespace thimble::utf8_test {
namespace {

TEST(Utf8, AcceptsTheFirstAndLastOfEachLength) {
  for (std::string_view text : {"", "a", "\x7F", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
                                "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"})
    EXPECT_EQ(first_invalid_utf8(text), std::nullopt);
  EXPECT_EQ(first_invalid_utf8(std::string_view("\0", 1)), std::nullopt);
}

TEST(Utf8, RefusesOverlongFormsSurrogatesAndLargeValues) {
  for (std::string_view text : {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xED\xBF\xBF",
                                "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFE", "\xFF"})
    EXPECT_EQ(first_invalid_utf8(text), 0U);
}

TEST(Utf8, TruncatedCharactersAreNamedByTheirFirstByte) {
  const std::string_view text = "ab\xF0\x9F\x98\x80";
  for (size_t length = 3; length < text.size(); ++length) EXPECT_EQ(first_invalid_utf8(text.substr(0, length)), 2U);
  EXPECT_EQ(first_invalid_utf8(text), std::nullopt);
  EXPECT_EQ(first_invalid_utf8("\xC3\xA9\xC3z"), 2U);
}

}  // namespace
}  // namespace thimble::utf8_test
