// option_values_test.cpp: numbers and sizes are read exactly or not at all; what was meant is suggested.
#include "quantizer/console/option_values.h"

#include <gtest/gtest.h>

#include "quantizer/console/suggestion.h"

namespace thimble::option_values_test {
namespace {

TEST(OptionValues, WholeNumbersAreDecimalDigits) {
  EXPECT_EQ(parse_whole_number("0"), 0);
  EXPECT_EQ(parse_whole_number("010"), 10);
  EXPECT_EQ(parse_whole_number("18446744073709551615"), UINT64_MAX);
  for (const char* text : {"", "-1", "+1", " 1", "1 ", "0x10", "1e3", "1.0", "18446744073709551616"})
    EXPECT_FALSE(parse_whole_number(text)) << text;
}

TEST(OptionValues, SizesAreExact) {
  const std::vector<std::pair<const char*, uint64_t>> sizes = {
      {"0", 0},
      {"16000000", 16'000'000},
      {"1.6e7", 16'000'000},
      {"16M", 16'000'000},
      {"16MB", 16'000'000},
      {"600KB", 600'000},
      {"600kB", 600'000},
      {"600k", 600'000},
      {"1.5MB", 1'500'000},
      {"1.234567MB", 1'234'567},
      {"1e6", 1'000'000},
      {"1E+6", 1'000'000},
      {"10e-1", 1},
      {"5B", 5},
      {"2G", 2'000'000'000},
      {"1T", 1'000'000'000'000},
      {"16MiB", 16 << 20},
      {"0.5Ki", 512},
      {"1.5GiB", uint64_t{3} << 29},
      {"0.0009765625KiB", 1},
      {"0e40", 0},
      {"0.000B", 0},
      {"4611686018427387904", uint64_t{1} << 62},
      {"4194304TiB", uint64_t{1} << 62},
  };
  for (const auto& [text, bytes] : sizes) EXPECT_EQ(parse_bytes(text), bytes) << text;
}

TEST(OptionValues, OtherSizesAreRefused) {
  for (const char* text : {"",
                           "B",
                           "MB",
                           "-5",
                           "+5",
                           "0.5B",
                           "0.0001KB",
                           "1e-6",
                           "1.5",
                           "16mb",
                           "16Mb",
                           "16 MB",
                           "16MB ",
                           " 16",
                           "1,000",
                           "1_000",
                           "0x10",
                           "1e",
                           "1e+",
                           "1e+-6",
                           "1e41",
                           "1e99999999999999999999",
                           "1.",
                           ".5M",
                           "1.2.3M",
                           "inf",
                           "nan",
                           "1MBB",
                           "1iB",
                           "4611686018427387905",
                           "99999999999999999999",
                           "5e18",
                           "4194305TiB",
                           "9e6T"})
    EXPECT_FALSE(parse_bytes(text)) << text;
}

TEST(Suggestion, CountsEdits) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("--bugdet", "--budget"), 1) << "neighbours swapped";
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("ca", "abc"), 3);
}

TEST(Suggestion, IsTheNearestNameOrNone) {
  const std::vector<std::string> names = {"slope", "trace", "nvfp4"};
  EXPECT_EQ(suggestion("slpoe", names), "; did you mean 'slope'?");
  EXPECT_EQ(suggestion("nvfp", names), "; did you mean 'nvfp4'?");
  EXPECT_EQ(suggestion("magic", names), "");
  EXPECT_EQ(suggestion("", names), "");
  EXPECT_EQ(suggestion(std::string(1000, 'x'), names), "");
  EXPECT_EQ(not_one_of("slpoe", names), "'slpoe', allowed are slope, trace, nvfp4; did you mean 'slope'?");
  EXPECT_EQ(not_one_of("magic", names), "'magic', allowed are slope, trace, nvfp4");
}

}  // namespace
}  // namespace thimble::option_values_test
