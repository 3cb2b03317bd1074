// unicode_versions_test.cpp: the tables against utf8proc where that knows the characters. That ids are those of the
// `tokenizers` library for such characters is bpe_tokenizer_test.cpp's.
#include "eval/tokenizers/unicode_versions.h"

#include <gtest/gtest.h>

#include "eval/tokenizers/text_regex.h"
#include "eval/tokenizers/unicode_tables.h"
#include "eval/tokenizers/utf8.h"

namespace thimble::unicode_versions_test {
namespace {

std::string utf8(uint32_t character) {
  utf8proc_uint8_t bytes[4];
  const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(character), bytes);
  return {reinterpret_cast<const char*>(bytes), static_cast<size_t>(length)};
}

TEST(UnicodeVersions, TablesAreInOrder) {
  for (size_t i = 1; i < std::size(kNewCategories); ++i)
    EXPECT_LT(kNewCategories[i - 1].last, kNewCategories[i].first) << i;
  for (size_t i = 1; i < std::size(kNewInNormalForms); ++i)
    EXPECT_LT(kNewInNormalForms[i - 1].last, kNewInNormalForms[i].first) << i;
}

TEST(UnicodeVersions, CategoriesAreThoseOfUtf8procWhereItKnowsTheCharacter) {
  size_t known = 0, unknown = 0;
  for (const CategoryRange& range : kNewCategories)
    for (uint32_t character = range.first; character <= range.last; ++character) {
      const utf8proc_category_t theirs = utf8proc_category(static_cast<utf8proc_int32_t>(character));
      EXPECT_EQ(general_category(character), range.category);
      const bool is_known = theirs != UTF8PROC_CATEGORY_CN;
      (is_known ? known : unknown) += 1;
      EXPECT_TRUE(!is_known || theirs == range.category) << std::hex << character;
    }
  EXPECT_EQ(known + unknown, 10301U);  // 4,489 of Unicode 15, 627 of 15.1, 5,185 of 16
  EXPECT_EQ(general_category('a'), UTF8PROC_CATEGORY_LL);
  EXPECT_EQ(general_category(0x4e00), UTF8PROC_CATEGORY_LO);
  EXPECT_EQ(general_category(0x10ffff), UTF8PROC_CATEGORY_CN);
}

// Regular expressions find the category of every new character, whatever PCRE2 knows.
TEST(UnicodeVersions, RegularExpressionsKnowNewCharacters) {
  size_t found = 0;
  for (const CategoryRange& range : kNewCategories) {
    std::string text;
    for (uint32_t character = range.first; character <= range.last; ++character) text += utf8(character);
    constexpr const char* kNames[] = {"Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd",
                                      "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm",
                                      "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"};
    const TextRegex regex("\\p{" + std::string(kNames[range.category]) + "}+", "t.json", "step");
    const std::vector<TextSpan> matches = regex.matches("\u20ac1" + text + "\u20ac1", MatchTime(text.size()));
    bool is_found = false;
    for (const TextSpan& match : matches) is_found |= match.begin <= 4 && match.end >= 4 + text.size();
    EXPECT_TRUE(is_found) << kNames[range.category] << " " << std::hex << range.first;
    ++found;
  }
  EXPECT_EQ(found, std::size(kNewCategories));
}

TEST(UnicodeVersions, TextOfKnownCharactersStaysWhereItIs) {
  std::string storage;
  const std::string text = "The sea, \u6d77 \U0001f600";
  EXPECT_EQ(with_known_characters(text, storage).data(), text.data());
  const std::string newer = "a" + utf8(0x1c89) + "b" + utf8(0x11f02) + "c";
  const std::string known(with_known_characters(newer, storage));
  EXPECT_EQ(known.size(), newer.size());
  EXPECT_NE(known, newer);
  EXPECT_FALSE(first_invalid_utf8(known));
  for (size_t at : {size_t{0}, size_t{4}, newer.size() - 1}) EXPECT_EQ(known[at], newer[at]);
}

TEST(UnicodeVersions, NumbersAndNormalForms) {
  for (uint32_t number : {0x30U, 0xb2U, 0x2167U, 0x11de0U, 0x16ff6U, 0x10d40U}) EXPECT_TRUE(is_numeric(number));
  for (uint32_t other : {0x61U, 0x4e00U, 0x11ddfU, 0x16ff7U, 0x10ffffU}) EXPECT_FALSE(is_numeric(other));
  for (uint32_t newer : {0x7fdU, 0x32ffU, 0x10781U, 0x1fbf9U}) EXPECT_TRUE(is_unknown_to_normal_forms(newer));
  for (uint32_t older : {0x41U, 0x301U, 0x212bU, 0xfb01U, 0x1fbfaU}) EXPECT_FALSE(is_unknown_to_normal_forms(older));
}

}  // namespace
}  // namespace thimble::unicode_versions_test
