// svg_chart_test.cpp: scales of one, equal, extreme and no values, and what is drawn of points that are not finite.
#include "quantizer/reports/svg_chart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <limits>

namespace thimble::svg_chart_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

ChartScale scale_of(std::vector<double> values, int most_ticks = 6) { return chart_scale(values, most_ticks); }

std::string drawn(const Chart& chart) {
  HtmlWriter html;
  add_chart(html, chart);
  return html.take();
}

size_t count(const std::string& text, const std::string& words) {
  size_t found = 0;
  for (size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++found;
  return found;
}

TEST(ChartScale, HoldsItsValuesWithRoundTicks) {
  const ChartScale scale = scale_of({1, 3, 9});
  EXPECT_LT(scale.low, 1);
  EXPECT_GT(scale.high, 9);
  EXPECT_THAT(scale.ticks(), ElementsAre(2, 4, 6, 8));
  EXPECT_EQ(scale.decimals, 0);
  EXPECT_NEAR(scale.share(5), 0.5, 1e-12);
  EXPECT_EQ(scale_of({1.2777, 1.2781}).decimals, 4);
}

TEST(ChartScale, OneValueOrEqualOnes) {
  for (const std::vector<double>& values :
       {std::vector<double>{1.5}, {1.5, 1.5}, {-7}, {0}, {1e-300}, {1e12, 1e12 * (1 + 1e-15)}}) {
    const ChartScale scale = scale_of(values);
    EXPECT_LT(scale.low, values[0]);
    EXPECT_GT(scale.high, values[0]);
    EXPECT_GT(scale.step, 0);
    EXPECT_FALSE(scale.ticks().empty());
    EXPECT_NEAR(scale.share(values[0]), 0.5, 0.01);
  }
}

TEST(ChartScale, WhatIsNotFiniteIsLeftOut) {
  const ChartScale scale = scale_of({kNan, 2, INFINITY, 4, -INFINITY});
  EXPECT_GT(scale.low, 1);
  EXPECT_LT(scale.high, 5);
  for (const std::vector<double>& values : {std::vector<double>{}, {kNan}, {INFINITY, -INFINITY}}) {
    const ChartScale none = scale_of(values);
    EXPECT_EQ(none.low, 0);
    EXPECT_EQ(none.high, 1);
    EXPECT_FALSE(none.ticks().empty());
  }
}

TEST(ChartScale, ExtremeValuesHaveFewTicks) {
  for (const std::vector<double>& values :
       {std::vector<double>{-DBL_MAX, DBL_MAX}, {0, DBL_MAX}, {0, DBL_MIN}, {1e-9, 1e9}, {1, 1 + 1e-8}}) {
    const ChartScale scale = scale_of(values);
    EXPECT_TRUE(std::isfinite(scale.low) && std::isfinite(scale.high) && std::isfinite(scale.step));
    EXPECT_LT(scale.low, scale.high);
    EXPECT_THAT(scale.ticks().size(), ::testing::AllOf(::testing::Ge(1u), ::testing::Le(14u)));
    for (double tick : scale.ticks()) EXPECT_TRUE(scale.share(tick) >= -1e-9 && scale.share(tick) <= 1 + 1e-9);
  }
}

TEST(Chart, DrawsCurvesBarsAndRulesTwice) {
  Chart chart{"id", "A <title>", "what it shows", "bytes", "loss", {}, {{"original", 1.5}}};
  chart.series = {{"slope", {{1, 2, 0.1, "first", false}, {2, 1, {}, "second", true}}}};
  const std::string html = drawn(chart);
  EXPECT_EQ(count(html, "<svg class=\"chart "), 2) << "wide and narrow";
  EXPECT_EQ(count(html, "class=\"bar\""), 2);
  EXPECT_EQ(count(html, "<title>first</title>"), 2);
  EXPECT_EQ(count(html, "class=\"mark chosen\""), 2);
  EXPECT_EQ(count(html, "class=\"rule\""), 3) << "with the legend's";
  EXPECT_THAT(html, HasSubstr("A &lt;title&gt;"));
  EXPECT_THAT(html, HasSubstr("aria-labelledby=\"id-wide-title id-wide-desc\""));
  EXPECT_THAT(html, HasSubstr("<desc id=\"id-narrow-desc\">what it shows</desc>"));
}

TEST(Chart, PointsThatAreNotFiniteAreNotDrawn) {
  Chart chart{"id", "t", "d", "x", "y", {}, {}};
  chart.series = {
      {"good", {{1, 2, kNan, "one", false}, {kNan, 2, {}, "two", false}, {2, INFINITY, {}, "three", false}}},
      {"bad", {{kNan, kNan, {}, "four", false}}}};
  const std::string html = drawn(chart);
  EXPECT_EQ(count(html, "<title>one</title>"), 2);
  for (const char* words : {"two", "three", "four", "nan", "inf", "class=\"bar\"", ">bad<"})
    EXPECT_THAT(html, Not(HasSubstr(words))) << words;
  chart.series.erase(chart.series.begin());
  EXPECT_EQ(drawn(chart), "") << "nothing to draw";
}

TEST(Chart, PointsApartAreNotJoined) {
  Chart chart{"id", "t", "d", "x", "y", {}, {}};
  chart.series = {{"tried", {{1, 2, {}, "", false}, {2, 1, {}, "", false}}, false}};
  EXPECT_THAT(drawn(chart), Not(HasSubstr("class=\"curve\"")));
  chart.series[0].is_joined = true;
  EXPECT_EQ(count(drawn(chart), "class=\"curve\""), 3) << "with the legend's";
}

}  // namespace
}  // namespace thimble::svg_chart_test
