// script_test.cpp: the first letter decides, and of Latin any letter beyond ASCII.
#include "eval/text/script.h"

#include <gtest/gtest.h>

namespace thimble::script_test {
namespace {

TEST(Script, IsThatOfTheFirstLetterAndOfLatinBeyondAscii) {
  for (const auto& [text, expected] : {std::pair("sea", Script::kLatin), {" Ärger", Script::kLatinBeyondAscii},
                                       {"ạ", Script::kLatinBeyondAscii}, {"caf\u00E9", Script::kLatinBeyondAscii},
                                       {"2\u00D7 sea", Script::kLatin},  {"sea 海", Script::kLatin},
                                       {"ὕδωρ", Script::kGreek},         {"…море", Script::kCyrillic},
                                       {"ծով", Script::kArmenian},       {"ים", Script::kHebrew},
                                       {"بحر", Script::kArabic},         {"समुद्र", Script::kDevanagari},
                                       {"ทะเล", Script::kThai},          {"ზღვა", Script::kGeorgian},
                                       {"바다", Script::kHangul},        {"ባሕር", Script::kEthiopic},
                                       {"12 うみ", Script::kKana},       {"ウミ", Script::kKana},
                                       {"海 sea", Script::kHan},         {"\U00020000", Script::kHan},
                                       {"\xE6\xB5z", Script::kLatin}})
    EXPECT_EQ(script_of(text), expected) << text;
}

TEST(Script, IsNoneWithoutALetter) {
  for (const char* text : {"", " ", "12.5", "({;", "\xE6\xB5", "ैं", "😀", "ꙮ", "\U00010400"})
    EXPECT_EQ(script_of(text), std::nullopt) << text;
}

}  // namespace
}  // namespace thimble::script_test
