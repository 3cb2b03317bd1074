// svg_chart.cpp: see svg_chart.h. Colours are the page's: classes s0 to s5.
#include "quantizer/reports/svg_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace thimble {
namespace {

constexpr size_t kColours = 6;
constexpr double kRoom = 0.06;  // of the range of values, free on both sides

// Of one size of the figure, in pixels.
struct Frame {
  const char* suffix;
  double width, height;
  int x_ticks, y_ticks;
};
constexpr Frame kFrames[] = {{"wide", 860, 380, 8, 7}, {"narrow", 340, 290, 4, 6}};
constexpr double kCharacter = 7.4;                      // about as wide as one of the labels' is
constexpr double kTop = 12, kRight = 16, kBottom = 48;  // margins
constexpr double kLabelLine = 22;                       // for the y axis's label, beside its ticks

bool is_drawn(const ChartPoint& point) { return std::isfinite(point.x) && std::isfinite(point.y); }

bool has_error(const ChartPoint& point) { return point.error && std::isfinite(*point.error) && *point.error > 0; }

std::string class_of(size_t series) { return "s" + std::to_string(series % kColours); }

// Of radius 1; they differ in form too, for those who do not see the colours apart.
constexpr const char* kMarks[] = {"M-1 0a1 1 0 1 0 2 0a1 1 0 1 0-2 0z", "M-1-1h2v2h-2z", "M0-1.2L1.15.9H-1.15z",
                                  "M0-1.3L1.3 0L0 1.3L-1.3 0z"};

HtmlWriter& open_mark(HtmlWriter& html, size_t series, double x, double y, const ChartPoint& point) {
  return html.open("path",
                   {{"class", point.is_chosen ? "mark chosen" : "mark"},
                    {"d", kMarks[series % std::size(kMarks)]},
                    {"transform", fmt::format("translate({} {}) scale({})", px(x), px(y), point.is_chosen ? 6 : 4)}});
}

std::string tick_text(double value, const ChartScale& scale) { return fmt::format("{:.{}f}", value, scale.decimals); }

struct Axes {
  const Frame& frame;
  ChartScale x, y;
  double left = 0;  // margin

  double right() const { return frame.width - kRight; }
  double floor() const { return frame.height - kBottom; }
  double at_x(double value) const { return left + x.share(value) * (right() - left); }
  double at_y(double value) const { return floor() - y.share(value) * (floor() - kTop); }
};

Axes axes_of(const Chart& chart, const Frame& frame) {
  std::vector<double> xs, ys;
  for (const ChartSeries& series : chart.series)
    for (const ChartPoint& point : series.points) {
      if (!is_drawn(point)) continue;
      const double error = has_error(point) ? *point.error : 0;
      xs.push_back(point.x);
      ys.insert(ys.end(), {point.y - error, point.y + error});
    }
  for (const ChartRule& rule : chart.horizontal) ys.push_back(rule.at);
  Axes axes{frame, chart_scale(xs, frame.x_ticks), chart_scale(ys, frame.y_ticks)};
  size_t longest = 0;
  for (double value : axes.y.ticks()) longest = std::max(longest, tick_text(value, axes.y).size());
  axes.left = kLabelLine + kCharacter * static_cast<double>(longest) + 10;
  return axes;
}

void line(HtmlWriter& html, const std::string& classes, double x1, double y1, double x2, double y2) {
  html.empty("line", {{"class", classes}, {"x1", x1}, {"y1", y1}, {"x2", x2}, {"y2", y2}});
}

void add_axes(HtmlWriter& html, const Chart& chart, const Axes& axes) {
  const double floor = axes.floor(), right = axes.right();
  for (double value : axes.y.ticks()) {
    line(html, "grid", axes.left, axes.at_y(value), right, axes.at_y(value));
    add_text(html, "tick", axes.left - 8, axes.at_y(value) + 4, "end", tick_text(value, axes.y));
  }
  for (double value : axes.x.ticks()) {
    line(html, "axis", axes.at_x(value), floor, axes.at_x(value), floor + 5);
    add_text(html, "tick", axes.at_x(value), floor + 19, "middle", tick_text(value, axes.x));
  }
  line(html, "axis", axes.left, floor, right, floor);
  add_text(html, "label", (axes.left + right) / 2, axes.frame.height - 8, "middle", chart.x_label);
  html.element("text",
               {{"class", "label"},
                {"transform", fmt::format("translate(12 {}) rotate(-90)", px((kTop + floor) / 2))},
                {"text-anchor", "middle"}},
               chart.y_label);
}

void add_error_bar(HtmlWriter& html, const ChartPoint& point, const Axes& axes) {
  constexpr double kCap = 4;
  const double x = axes.at_x(point.x), high = axes.at_y(point.y + *point.error),
               low = axes.at_y(point.y - *point.error);
  html.empty("path", {{"class", "bar"},
                      {"d", fmt::format("M{0} {2}h{4}M{1} {2}V{3}M{0} {3}h{4}", px(x - kCap), px(x), px(high), px(low),
                                        px(2 * kCap))}});
}

void add_series(HtmlWriter& html, const ChartSeries& series, size_t index, const Axes& axes) {
  html.open("g", {{"class", class_of(index) + (series.is_reference ? " reference" : "")}});
  std::string path;
  for (const ChartPoint& point : series.points)
    if (is_drawn(point)) path += (path.empty() ? "M" : "L") + px(axes.at_x(point.x)) + " " + px(axes.at_y(point.y));
  if (series.is_joined && path.find('L') != std::string::npos) html.empty("path", {{"class", "curve"}, {"d", path}});
  for (const ChartPoint& point : series.points) {
    if (!is_drawn(point)) continue;
    if (has_error(point)) add_error_bar(html, point, axes);
    open_mark(html, index, axes.at_x(point.x), axes.at_y(point.y), point).element("title", {}, point.note).close();
  }
  html.close();
}

void add_size(HtmlWriter& html, const Chart& chart, const Frame& frame) {
  const Axes axes = axes_of(chart, frame);
  const std::string id = chart.id + "-" + frame.suffix;
  html.open("svg", {{"class", std::string("chart ") + frame.suffix},
                    {"viewBox", fmt::format("0 0 {} {}", px(frame.width), px(frame.height))},
                    {"role", "img"},
                    {"aria-labelledby", id + "-title " + id + "-desc"}});
  html.element("title", {{"id", id + "-title"}}, chart.title);
  html.element("desc", {{"id", id + "-desc"}}, chart.description);
  add_axes(html, chart, axes);
  for (const ChartRule& rule : chart.horizontal)
    line(html, "rule", axes.left, axes.at_y(rule.at), axes.right(), axes.at_y(rule.at));
  for (size_t i = 0; i < chart.series.size(); ++i) add_series(html, chart.series[i], i, axes);
  html.close();
}

void add_legend(HtmlWriter& html, const Chart& chart) {
  html.open("ul", {{"class", "legend"}});
  auto swatch = [&] {
    html.open("li").open("svg", {{"width", "30"}, {"height", "14"}, {"viewBox", "0 0 30 14"}, {"aria-hidden", "true"}});
  };
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const ChartSeries& series = chart.series[i];
    if (std::ranges::none_of(series.points, is_drawn)) continue;
    swatch();
    html.open("g", {{"class", class_of(i) + (series.is_reference ? " reference" : "")}});
    if (series.is_joined && std::ranges::count_if(series.points, is_drawn) > 1)
      html.empty("path", {{"class", "curve"}, {"d", "M1 7H29"}});
    open_mark(html, i, 15, 7, {}).close().close().close().element("span", {}, series.name).close();
  }
  for (const ChartRule& rule : chart.horizontal) {
    swatch();
    line(html, "rule", 1, 7, 29, 7);
    html.close().element("span", {}, rule.name).close();
  }
  html.close();
}

}  // namespace

bool ChartSeries::has_bars() const {
  return std::ranges::all_of(points, [](const ChartPoint& point) { return point.error.has_value(); });
}

std::vector<double> ChartScale::ticks() const {
  std::vector<double> ticks;
  const double last = std::floor(high / step + 1e-9);
  for (double i = std::ceil(low / step - 1e-9); i <= last; ++i) ticks.push_back(i == 0 ? 0 : i * step);
  return ticks;
}

ChartScale chart_scale(std::span<const double> values, int most_ticks) {
  double low = INFINITY, high = -INFINITY;
  for (double value : values)
    if (std::isfinite(value)) low = std::min(low, value), high = std::max(high, value);
  if (low > high) return {};
  // What a double cannot tell apart is no range.
  const double least = std::max({std::abs(low), std::abs(high), 1e-300}) * 1e-9;
  const double middle = low / 2 + high / 2;
  double room = (high / 2 - low / 2) * 2 * kRoom;
  if (!(high - low > least)) room = middle == 0 ? 0.5 : std::abs(middle) * 0.05;
  ChartScale scale;
  constexpr double kFurthest = 1e300;  // sums and differences stay finite
  scale.low = std::max(low - room, -kFurthest);
  scale.high = std::min(high + room, kFurthest);
  const double rough = (scale.high - scale.low) / std::max(1, most_ticks);
  const double power = std::pow(10, std::floor(std::log10(rough)));
  scale.step = 10 * power;
  for (double factor : {1.0, 2.0, 5.0})
    if (factor * power >= rough * (1 - 1e-9)) {
      scale.step = factor * power;
      break;
    }
  scale.decimals = std::clamp(static_cast<int>(std::ceil(-std::log10(scale.step) - 1e-9)), 0, 12);
  return scale;
}

void add_chart(HtmlWriter& html, const Chart& chart) {
  const bool has_points = std::ranges::any_of(
      chart.series, [](const ChartSeries& series) { return std::ranges::any_of(series.points, is_drawn); });
  if (!has_points) return;
  html.open("figure");
  html.element("figcaption", {}, chart.title);
  add_legend(html, chart);
  for (const Frame& frame : kFrames) add_size(html, chart, frame);
  html.close();
}

}  // namespace thimble
