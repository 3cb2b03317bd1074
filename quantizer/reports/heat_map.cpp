// heat_map.cpp: see heat_map.h.
#include "quantizer/reports/heat_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>
#include <set>

#include "quantizer/console/console.h"

namespace thimble {
namespace {

constexpr const char* kShades[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
constexpr const char* kNothing = "·";

struct Place {
  std::string kind;
  int64_t layer = 0;
};

// By the first number between dots.
std::optional<Place> place_of(const std::string& name) {
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    int64_t layer = 0;
    auto [stop, error] = std::from_chars(name.data() + begin, name.data() + end, layer);
    if (error == std::errc() && stop == name.data() + end && layer >= 0)
      return Place{name.substr(0, begin) + "*" + name.substr(end), layer};
    begin = end + 1;
  }
  return std::nullopt;
}

// Leaves off what all begin with and end with, in whole parts between dots.
void shorten(std::vector<std::string>& kinds) {
  if (kinds.size() < 2) return;
  size_t front = kinds[0].size(), back = kinds[0].size(), shortest = kinds[0].size();
  for (const std::string& kind : kinds) {
    shortest = std::min(shortest, kind.size());
    front = std::min(front, static_cast<size_t>(std::ranges::mismatch(kind, kinds[0]).in1 - kind.begin()));
    const size_t same = static_cast<size_t>(
        std::mismatch(kind.rbegin(), kind.rend(), kinds[0].rbegin(), kinds[0].rend()).first - kind.rbegin());
    back = std::min(back, same);
  }
  const size_t dot = front == 0 ? std::string::npos : kinds[0].rfind('.', front - 1);
  front = dot == std::string::npos ? 0 : dot + 1;
  const size_t last = kinds[0].find('.', kinds[0].size() - back);
  back = last == std::string::npos ? 0 : kinds[0].size() - last;
  if (front + back >= shortest) return;
  for (std::string& kind : kinds) kind = kind.substr(front, kind.size() - front - back);
}

// Of all values of a map.
struct Range {
  double least = INFINITY, most = -INFINITY;
  // 0 to 1; `middle` where all values are equal.
  double share(double value, double middle) const { return most > least ? (value - least) / (most - least) : middle; }
};

Range range_of(const HeatMap& map) {
  Range range;
  for (const auto& row : map.values)
    for (const std::optional<double>& value : row)
      if (value) range = {std::min(range.least, *value), std::max(range.most, *value)};
  return range;
}

const char* shade(double value, const Range& range) {
  const double share = range.share(value, 0);
  return kShades[std::clamp(static_cast<int>(share * std::size(kShades)), 0, static_cast<int>(std::size(kShades)) - 1)];
}

// The map as SVG.

constexpr double kLabelCharacter = 6.2;  // about as wide as one of the labels' is
constexpr size_t kMostCharacters = 28;
constexpr double kSlant = 50;     // degrees, of the kinds' names
constexpr double kHeadline = 34;  // for the scale of shades above the map
constexpr const char* kStyle =
    ".heat-map{font:11px system-ui,sans-serif}.heat-map text{fill:#444a54}.heat-map .dark{fill:#10243a}"
    ".heat-map .light{fill:#fff}.heat-map .none{fill:none;stroke:#8a93a0;stroke-opacity:.35}"
    "@media (prefers-color-scheme:dark){.heat-map text{fill:#b4bcc8}.heat-map .dark{fill:#10243a}"
    ".heat-map .light{fill:#fff}}";

// Of UTF-8.
bool begins_character(char c) { return (c & 0xc0) != 0x80; }

// The end tells kinds apart more often than the beginning does. Cuts between characters of UTF-8.
std::string shortened(const std::string& name) {
  size_t characters = display_width(name);
  if (characters <= kMostCharacters) return name;
  size_t at = 0;
  while (characters >= kMostCharacters || !begins_character(name[at]))
    characters -= begins_character(name[at++]) ? 1 : 0;
  return "…" + name.substr(at);
}

double text_width(const std::string& text) { return kLabelCharacter * static_cast<double>(display_width(text)); }

constexpr double kMiddleShade = 0.5;  // where all values are equal

// From a pale to a deep blue; both stand out from a white and from a dark page.
std::string colour(double share) {
  auto part = [&](double pale, double deep) { return std::lround(pale + share * (deep - pale)); };
  return fmt::format("#{:02x}{:02x}{:02x}", part(222, 8), part(235, 69), part(247, 148));
}

const char* ink(double share) { return share > 0.62 ? "light" : "dark"; }

void add_scale(HtmlWriter& html, const Range& range, const std::string& title) {
  constexpr int kSteps = 8;
  constexpr double kStep = 14, kTop = 8;
  const std::string least = fmt::format("{:.2f}", range.least);
  double x = text_width(title) + 12;
  add_text(html, "", 0, kTop + 10, "start", title);
  add_text(html, "", x, kTop + 10, "start", least);
  x += text_width(least) + 6;
  for (int i = 0; i < kSteps; ++i, x += kStep)
    html.empty("rect", {{"x", x},
                        {"y", kTop},
                        {"width", kStep},
                        {"height", 12},
                        {"fill", colour(range.most > range.least ? i / (kSteps - 1.0) : kMiddleShade)}});
  add_text(html, "", x + 6, kTop + 10, "start", fmt::format("{:.2f}", range.most));
}

// In pixels.
struct Layout {
  double cell_width, cell_height;
  bool has_numbers;
  double left = 30, top = 0, width = 0, height = 0;

  // Left and upper edge of cells.
  double x(size_t kind) const { return left + static_cast<double>(kind) * cell_width; }
  double y(size_t layer) const { return top + static_cast<double>(layer) * cell_height; }
};

Layout layout_of(const HeatMap& map, const std::string& title) {
  constexpr double kScaleWidth = 210;  // the shades and two numbers
  const double radians = kSlant * std::numbers::pi / 180;
  const size_t layers = map.layers.size(), kinds = map.kinds.size();
  Layout layout{kinds <= 6    ? 48.0
                : kinds <= 16 ? 42.0
                              : 16.0,
                layers <= 24   ? 24.0
                : layers <= 64 ? 18.0
                               : 9.0,
                layers <= 64 && kinds <= 16};
  double longest = 0, last = 0;
  for (int64_t layer : map.layers) layout.left = std::max(layout.left, 8 + text_width(std::to_string(layer)));
  for (size_t i = 0; i < kinds; ++i) {
    const double length = text_width(shortened(map.kinds[i]));
    longest = std::max(longest, length);
    last = std::max(last, layout.x(i) + layout.cell_width / 2 + length * std::cos(radians));
  }
  layout.top = kHeadline + longest * std::sin(radians) + 14;
  layout.width = std::max({layout.x(kinds) + 2, last + 8, text_width(title) + kScaleWidth});
  layout.height = layout.y(layers) + 2;
  return layout;
}

void add_cell(HtmlWriter& html, const HeatMap& map, size_t kind, size_t layer, const Range& range,
              const Layout& layout) {
  const double x = layout.x(kind), y = layout.y(layer), width = layout.cell_width, height = layout.cell_height;
  const std::optional<double>& value = map.values[kind][layer];
  if (!value) {
    html.empty("rect",
               {{"class", "none"}, {"x", x + 0.5}, {"y", y + 0.5}, {"width", width - 2}, {"height", height - 2}});
    return;
  }
  const double share = range.share(*value, kMiddleShade);
  html.open("g");
  html.element("title", {}, fmt::format("layer {}, {}: {:.3f}", map.layers[layer], map.kinds[kind], *value));
  html.empty("rect", {{"x", x}, {"y", y}, {"width", width - 1}, {"height", height - 1}, {"fill", colour(share)}});
  if (layout.has_numbers)
    add_text(html, ink(share), x + width / 2, y + height / 2 + 4, "middle", fmt::format("{:.2f}", *value));
  html.close();
}

void add_names(HtmlWriter& html, const HeatMap& map, const Layout& layout) {
  for (size_t i = 0; i < map.kinds.size(); ++i) {
    const double x = layout.x(i) + layout.cell_width / 2;
    html.open("text",
              {{"transform", fmt::format("translate({} {}) rotate(-{})", px(x), px(layout.top - 6), px(kSlant))}});
    html.element("title", {}, map.kinds[i]).text(shortened(map.kinds[i])).close();
  }
  constexpr double kLineHeight = 16;
  const auto every = static_cast<size_t>(std::ceil(kLineHeight / layout.cell_height));
  for (size_t j = 0; j < map.layers.size(); j += every)
    add_text(html, "", layout.left - 6, layout.y(j) + layout.cell_height / 2 + 4, "end", std::to_string(map.layers[j]));
}

}  // namespace

HeatMap heat_map(const std::map<std::string, double>& by_name) {
  std::map<std::string, std::map<int64_t, std::string>> by_kind;  // names, by layer
  std::set<int64_t> layers;
  for (const auto& [name, value] : by_name)
    if (auto place = place_of(name)) {
      by_kind[place->kind][place->layer] = name;
      layers.insert(place->layer);
    }
  HeatMap map;
  if (by_kind.size() * layers.size() > kMaxHeatMapCells) return map;
  map.layers.assign(layers.begin(), layers.end());
  for (const auto& [kind, names] : by_kind) {
    std::vector<std::optional<double>>& row = map.values.emplace_back(layers.size());
    for (const auto& [layer, name] : names) {
      row[static_cast<size_t>(std::ranges::lower_bound(map.layers, layer) - map.layers.begin())] = by_name.at(name);
      map.row_of[name] = map.kinds.size();
    }
    map.kinds.push_back(kind);
  }
  shorten(map.kinds);
  return map;
}

std::string to_text(const HeatMap& map, const std::string& title) {
  if (map.empty()) return "";
  const Range range = range_of(map);
  size_t width = 0;
  for (const std::string& kind : map.kinds) width = std::max(width, kind.size());
  std::string text = fmt::format("{} by layer, from {} {:.3f} to {} {:.3f}\n{:{}}  ", title, kShades[0], range.least,
                                 kShades[std::size(kShades) - 1], range.most, "", width);
  for (int64_t layer : map.layers) text += std::to_string(layer % 10);
  text += "  mean\n";
  for (size_t i = 0; i < map.kinds.size(); ++i) {
    text += fmt::format("{:{}}  ", map.kinds[i], width);
    double sum = 0, count = 0;
    for (const std::optional<double>& value : map.values[i]) {
      text += value ? shade(*value, range) : kNothing;
      if (value) sum += *value, ++count;
    }
    text += fmt::format("  {:.3f}\n", sum / count);
  }
  return text;
}

void add_heat_map(HtmlWriter& html, const HeatMap& map, const std::string& title, const std::string& id) {
  if (map.empty()) return;
  const Range range = range_of(map);
  const Layout layout = layout_of(map, title);
  const std::string width = px(layout.width), height = px(layout.height);
  html.open("svg", {{"xmlns", "http://www.w3.org/2000/svg"},
                    {"class", "heat-map"},
                    {"width", width},
                    {"height", height},
                    {"viewBox", "0 0 " + width + " " + height},
                    {"role", "img"},
                    {"aria-labelledby", id + "-title " + id + "-desc"}});
  html.element("title", {{"id", id + "-title"}}, title + " by layer and kind of matrix");
  html.element("desc", {{"id", id + "-desc"}},
               fmt::format("{} layers, {} kinds of matrix, from {:.3f} to {:.3f}", map.layers.size(), map.kinds.size(),
                           range.least, range.most));
  html.style(kStyle);
  add_scale(html, range, title);
  add_names(html, map, layout);
  for (size_t j = 0; j < map.layers.size(); ++j)
    for (size_t i = 0; i < map.kinds.size(); ++i) add_cell(html, map, i, j, range, layout);
  html.close();
}

std::string heat_map_svg(const HeatMap& map, const std::string& title) {
  HtmlWriter html;
  add_heat_map(html, map, title, "map");
  return html.take();
}

}  // namespace thimble
