// heat_map_svg_test.cpp: cells, holes and labels of the map as SVG.
#include "quantizer/reports/heat_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace thimble {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

size_t count(const std::string& text, const std::string& words) {
  size_t found = 0;
  for (size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++found;
  return found;
}

TEST(HeatMapSvg, HasACellForEachMatrixAndAHoleForNone) {
  const HeatMap map = heat_map({{"b.0.q.w", 2}, {"b.0.k.w", 3}, {"b.10.q.w", 4.25}, {"b.10.<k>.w", 1}});
  const std::string svg = heat_map_svg(map, "bits & more");
  for (const char* words : {"<svg xmlns=\"http://www.w3.org/2000/svg\"", "bits &amp; more", "layer 10, q: 4.250",
                            ">4.25<", "class=\"none\"", "&lt;k&gt;", "from 1.000 to 4.250"})
    EXPECT_THAT(svg, HasSubstr(words)) << words;
  EXPECT_EQ(count(svg, "<g>"), 4);
  EXPECT_EQ(count(svg, "class=\"none\""), 2);
  EXPECT_EQ(heat_map_svg({}, "nothing"), "");
}

TEST(HeatMapSvg, OfManyLayersHasNoNumbersAndFewLabels) {
  std::map<std::string, double> values;
  for (int i = 0; i < 120; ++i) values["b." + std::to_string(i) + ".w"] = 3;
  const std::string svg = heat_map_svg(heat_map(values), "bits");
  EXPECT_THAT(svg, HasSubstr(">118</text>"));
  EXPECT_THAT(svg, Not(HasSubstr(">119</text>")));
  EXPECT_THAT(svg, HasSubstr("<title>layer 119, b.*.w: 3.000</title>"));
  EXPECT_THAT(svg, Not(HasSubstr("class=\"dark\"")));
}

}  // namespace
}  // namespace thimble
