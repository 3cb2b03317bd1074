// suggestion.cpp: see suggestion.h.
#include "quantizer/console/suggestion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

namespace thimble {
namespace {

// Longer texts are no misspelt name; the table of distances stays small.
constexpr size_t kMaxNameLetters = 64;

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    std::swap(before, last);
    std::swap(last, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::string nearest_name(std::string_view text, std::span<const std::string> names) {
  if (text.size() > kMaxNameLetters) return "";
  std::string nearest;
  size_t least = SIZE_MAX;
  for (const std::string& name : names) {
    const size_t distance = edit_distance(text, name);
    if (distance >= least || 3 * distance > std::max(name.size(), text.size())) continue;
    least = distance;
    nearest = name;
  }
  return nearest;
}

std::string suggestion(std::string_view text, std::span<const std::string> names) {
  const std::string nearest = nearest_name(text, names);
  return nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest);
}

std::string not_one_of(std::string_view text, std::span<const std::string> names) {
  return fmt::format("'{}', allowed are {}{}", text, fmt::join(names, ", "), suggestion(text, names));
}

}  // namespace thimble
