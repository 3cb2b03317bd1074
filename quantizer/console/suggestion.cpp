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

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

// Those for files that may be given several times, of which the parser takes one each time.
std::vector<std::string> repeatable_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    if (option->nonpositional() && option->get_expected_max() > 1 && option->get_type_name() == "FILE")
      names.push_back(option->get_name());
  return names;
}

// "" where the command knows all its arguments.
std::string unknown_argument(const CLI::App& command) {
  const std::vector<std::string> unknown = command.remaining();
  const auto option = std::ranges::find_if(unknown, [](const std::string& text) { return text.starts_with('-'); });
  if (option != unknown.end()) {
    const std::string name = option->substr(0, option->find('='));
    return fmt::format("{} is not an option of {}{}", name, command.get_name(),
                       suggestion(name, option_names(command)));
  }
  if (unknown.empty()) return "";
  const std::vector<std::string> repeatable = repeatable_names(command);
  const std::string hint =
      repeatable.empty() ? "" : fmt::format("; of several files, each needs its own {}", fmt::join(repeatable, " or "));
  return fmt::format("'{}' is one argument too many{}", unknown.front(), hint);
}

std::string unknown_command(const CLI::App& app) {
  const std::vector<std::string> unknown = app.remaining();
  if (unknown.empty()) return "";
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands(nullptr)) names.push_back(command->get_name());
  return fmt::format("'{}' is not a command or an option that goes before one{}", unknown.front(),
                     suggestion(unknown.front(), names));
}

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

std::string suggestion(std::string_view text, std::span<const std::string> names) {
  if (text.size() > kMaxNameLetters) return "";
  const std::string* nearest = nullptr;
  size_t least = SIZE_MAX;
  for (const std::string& name : names) {
    const size_t distance = edit_distance(text, name);
    if (distance >= least || 3 * distance > std::max(name.size(), text.size())) continue;
    least = distance;
    nearest = &name;
  }
  return nearest == nullptr ? "" : fmt::format("; did you mean '{}'?", *nearest);
}

std::string not_one_of(std::string_view text, std::span<const std::string> names) {
  return fmt::format("'{}', allowed are {}{}", text, fmt::join(names, ", "), suggestion(text, names));
}

std::string usage_message(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  const std::string unknown = chosen.empty() ? unknown_command(app) : unknown_argument(*chosen.front());
  return unknown.empty() ? error.what() : unknown;
}

}  // namespace thimble
