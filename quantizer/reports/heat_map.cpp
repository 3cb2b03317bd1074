// heat_map.cpp: see heat_map.h.
#include "quantizer/reports/heat_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "quantizer/reports/gnuplot.h"

namespace thimble {
namespace {

constexpr const char* kShades[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
constexpr const char* kNothing = "·";
constexpr size_t kMostLabelledLayers = 24;

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

const char* shade(double value, const HeatMapRange& range) {
  const double share = range.share(value, 0);
  return kShades[std::clamp(static_cast<int>(share * std::size(kShades)), 0, static_cast<int>(std::size(kShades)) - 1)];
}

// A tic label of gnuplot is a format.
std::string tic_label(std::string text) {
  for (size_t at = text.find('%'); at != std::string::npos; at = text.find('%', at + 2)) text.insert(at, "%");
  return gnuplot_quoted(text);
}

}  // namespace

HeatMapRange range_of(const HeatMap& map) {
  HeatMapRange range{INFINITY, -INFINITY};
  for (const auto& row : map.values)
    for (const std::optional<double>& value : row)
      if (value) range = {std::min(range.least, *value), std::max(range.most, *value)};
  return range;
}

HeatMap heat_map(const std::map<std::string, double>& by_name) {
  std::map<std::string, std::map<int64_t, double>> by_kind;
  std::set<int64_t> layers;
  for (const auto& [name, value] : by_name)
    if (auto place = place_of(name)) {
      by_kind[place->kind][place->layer] = value;
      layers.insert(place->layer);
    }
  HeatMap map;
  if (by_kind.size() * layers.size() > kMaxHeatMapCells) return map;
  map.layers.assign(layers.begin(), layers.end());
  for (const auto& [kind, values] : by_kind) {
    map.kinds.push_back(kind);
    std::vector<std::optional<double>>& row = map.values.emplace_back();
    for (int64_t layer : map.layers) {
      auto found = values.find(layer);
      row.push_back(found == values.end() ? std::nullopt : std::optional(found->second));
    }
  }
  shorten(map.kinds);
  return map;
}

std::string to_text(const HeatMap& map, const std::string& title) {
  if (map.empty()) return "";
  const HeatMapRange range = range_of(map);
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

std::string heat_map_script(const HeatMap& map, const std::string& title, const std::string& output_name) {
  const auto columns = static_cast<int>(map.layers.size()), rows = static_cast<int>(map.kinds.size());
  std::string text = gnuplot_output(output_name, std::clamp(220 + 44 * columns, 420, 2400), 110 + 36 * rows);
  text += "$cells << EOD\n";  // layer, kind, value
  for (size_t i = 0; i < map.kinds.size(); ++i)
    for (size_t j = 0; j < map.layers.size(); ++j)
      if (map.values[i][j]) text += fmt::format("{} {} {:.6g}\n", j, i, *map.values[i][j]);
  text += "EOD\nset title " + gnuplot_quoted(title) + "\nset xlabel 'layer'\nset xtics nomirror out (";
  const size_t every = 1 + map.layers.size() / kMostLabelledLayers;
  for (size_t j = 0; j < map.layers.size(); j += every)
    text += fmt::format("{}'{}' {}", j == 0 ? "" : ", ", map.layers[j], j);
  text += ")\nset ytics nomirror out (";
  for (size_t i = 0; i < map.kinds.size(); ++i)
    text += fmt::format("{}{} {}", i == 0 ? "" : ", ", tic_label(map.kinds[i]), i);
  text += fmt::format(
      ")\nset xrange [-0.5:{}.5]\nset yrange [{}.5:-0.5]\n"
      "set palette defined (0 '#f7fbff', 0.5 '#9ecae1', 1 '#4292c6')\nunset key\n",
      columns - 1, rows - 1);
  text += "plot $cells using 1:2:(0.5):(0.5):3 with boxxyerror fillstyle solid 1 noborder linecolor palette";
  if (map.layers.size() <= kMostLabelledLayers)
    text += ", $cells using 1:2:(sprintf('%.2f', $3)) with labels font 'sans,9'";
  return text + "\nset output\n";
}

}  // namespace thimble
