// usage_message.cpp: see usage_message.h.
#include "quantizer/console/usage_message.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "quantizer/console/suggestion.h"

namespace thimble {
namespace {

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

std::string usage_message(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  const std::string unknown = chosen.empty() ? unknown_command(app) : unknown_argument(*chosen.front());
  return unknown.empty() ? error.what() : unknown;
}

}  // namespace thimble
