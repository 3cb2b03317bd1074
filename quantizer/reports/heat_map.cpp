// heat_map.cpp: see heat_map.h.
#include "quantizer/reports/heat_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

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

const char* shade(double value, const HeatMapRange& range) {
  const double share = range.share(value, 0);
  return kShades[std::clamp(static_cast<int>(share * std::size(kShades)), 0, static_cast<int>(std::size(kShades)) - 1)];
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

}  // namespace thimble
