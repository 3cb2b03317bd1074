// heat_map_test.cpp: which names have a place, what is left off them, and the map as text, script and SVG.
#include "quantizer/reports/heat_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "quantizer/reports/gnuplot.h"

namespace thimble::heat_map_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(HeatMap, HasLayersAcrossAndKindsDown) {
  HeatMap map = heat_map({{"blocks.0.attn.c_q.weight", 1},
                          {"blocks.2.attn.c_q.weight", 3},
                          {"blocks.2.mlp.fc.weight", 2},
                          {"blocks.10.mlp.fc.weight", 4},
                          {"tok_emb.weight", 100}});
  EXPECT_THAT(map.layers, ElementsAre(0, 2, 10));
  EXPECT_THAT(map.kinds, ElementsAre("attn.c_q", "mlp.fc"));
  ASSERT_EQ(map.values.size(), 2);
  EXPECT_THAT(map.values[0], ElementsAre(1, 3, std::nullopt));
  EXPECT_THAT(map.values[1], ElementsAre(std::nullopt, 2, 4));
}

TEST(HeatMap, NamesOfOtherFamilies) {
  EXPECT_THAT(heat_map({{"model.layers.7.self_attn.q_proj.weight", 1}, {"model.layers.7.mlp.up_proj.weight", 1}}).kinds,
              ElementsAre("mlp.up_proj", "self_attn.q_proj"));
  EXPECT_THAT(heat_map({{"h.3.w", 1}}).kinds, ElementsAre("h.*.w")) << "one kind has nothing in common with others";
  EXPECT_THAT(heat_map({{"3.a", 1}, {"3.b", 1}}).kinds, ElementsAre("a", "b"));
  EXPECT_THAT(heat_map({{"3.w", 1}, {"3.w.w", 1}}).kinds, ElementsAre("*.w", "*.w.w"));
  EXPECT_THAT(heat_map({{"a.3.b", 1}, {"3.b", 1}}).kinds, ElementsAre("*", "a.*"));
}

TEST(HeatMap, NamesWithoutAPlace) {
  for (const char* name : {"", ".", "weight", "layer1.weight", "a.-1.b", "a.1x.b", "a.99999999999999999999.b", "a..b"})
    EXPECT_TRUE(heat_map({{name, 1}}).empty()) << name;
  EXPECT_TRUE(heat_map({}).empty());
  EXPECT_EQ(to_text(heat_map({}), "title"), "");
}

TEST(HeatMap, OneThatNamesWereMadeUpForIsNotDrawn) {
  std::map<std::string, double> values;
  for (int i = 0; i < 300; ++i) values["kind" + std::to_string(i) + "." + std::to_string(i)] = 1;
  EXPECT_TRUE(heat_map(values).empty());
}

TEST(HeatMap, AsText) {
  HeatMap map = heat_map({{"b.0.long.w", 1}, {"b.1.long.w", 2}, {"b.11.long.w", 5}, {"b.1.x.w", 4.9}});
  EXPECT_EQ(to_text(map, "bits per weight"),
            "bits per weight by layer, from ▁ 1.000 to █ 5.000\n"
            "      011  mean\n"
            "long  ▁▃█  2.667\n"
            "x     ·█·  4.900\n");
  EXPECT_THAT(to_text(heat_map({{"b.0.w", 3}, {"b.1.w", 3}}), "t"), HasSubstr("▁▁  3.000")) << "all the same";
}

TEST(HeatMap, AsAScript) {
  std::string script = heat_map_script(heat_map({{"b.0.it's.w", 1}, {"b.1.50%.w", 2.5}}), "a title", "map.svg");
  for (const char* words : {"set terminal svg", "set output 'map.svg'", "\n0 1 1\n", "\n1 0 2.5\n", "'50%%' 0",
                            "'it''s' 1", "set title 'a title'", "'0' 0, '1' 1"})
    EXPECT_THAT(script, HasSubstr(words));
  EXPECT_THAT(heat_map_script(heat_map({{"b.0.w", 1}}), "t", "map.png"), HasSubstr("set terminal pngcairo"));
}

TEST(HeatMap, ManyLayersAreNotAllLabelled) {
  std::map<std::string, double> values;
  for (int i = 0; i < 96; ++i) values["b." + std::to_string(i) + ".w"] = i;
  std::string script = heat_map_script(heat_map(values), "t", "map.svg");
  EXPECT_THAT(script, HasSubstr("'95' 95"));
  EXPECT_THAT(script, Not(HasSubstr("'94' 94")));
  EXPECT_THAT(script, Not(HasSubstr("with labels")));
}

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
}  // namespace thimble::heat_map_test
