// help_formatter.cpp: see help_formatter.h.
#include "quantizer/console/help_formatter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <vector>

namespace thimble {
namespace {

// In this order.
constexpr std::array<const char*, 2> kShortGroups = {kCommonGroup, kGeneralGroup};
constexpr std::array<const char*, 9> kAllGroups = {kCommonGroup, kCalibrationGroup, kEncodingGroup,
                                                   kSlopeGroup,  kTraceGroup,       kEvaluationGroup,
                                                   kResumeGroup, kMachineGroup,     kGeneralGroup};

constexpr size_t kNameColumns = 30, kLineColumns = 100;

// Words of `text` on lines of at most kLineColumns, each after `indent` blanks.
std::string wrapped(const std::string& text, size_t indent) {
  std::string lines;
  size_t column = indent;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const bool fits = column + 1 + (end - begin) <= kLineColumns;
    if (begin > 0) lines += fits ? " " : "\n" + std::string(indent, ' ');
    column = (begin == 0 ? indent : fits ? column + 1 : indent) + (end - begin);
    lines += text.substr(begin, end - begin);
    begin = end + 1;
  }
  return lines;
}

std::vector<const CLI::Option*> options_under(const CLI::App* app, const std::string& heading) {
  return app->get_options(
      [&](const CLI::Option* option) { return option->get_group() == heading && option->nonpositional(); });
}

// "-o,--output FILE"; of a positional "MODEL".
std::string names_text(const CLI::Option* option, bool is_positional) {
  if (is_positional) return option->get_name(true, false);
  const bool has_value = option->get_type_size() != 0 && !option->get_type_name().empty();
  return option->get_name(false, true) + (has_value ? " " + option->get_type_name() : "");
}

std::string description_text(const CLI::Option* option, bool is_positional) {
  std::string text = option->get_description();
  if (option->get_required() && !is_positional) text += " (required)";
  const std::string& value = option->get_default_str();
  if (option->get_type_size() != 0 && !value.empty()) text += " (default: " + value + ")";
  return text;
}

std::string lower_case(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

// The headings that a short help leaves out.
std::string other_groups(const CLI::App* app, const std::string& name) {
  std::vector<std::string> others;
  for (const std::string heading : kAllGroups)
    if (std::ranges::find(kShortGroups, heading) == kShortGroups.end() && !options_under(app, heading).empty())
      others.push_back(lower_case(heading));
  if (others.empty()) return "";
  return "\n" + wrapped(fmt::format("`{} --help-all` also shows: {}.", name, fmt::join(others, ", ")), 0) + "\n";
}

template <typename Groups>
std::string groups_text(const HelpFormatter& formatter, const CLI::App* app, const Groups& headings) {
  std::string text;
  for (const char* heading : headings) {
    const std::vector<const CLI::Option*> options = options_under(app, heading);
    if (options.empty()) continue;
    text += fmt::format("\n{}:\n", heading);
    for (const CLI::Option* option : options) text += formatter.make_option(option, false);
  }
  return text;
}

}  // namespace

std::string HelpFormatter::make_option(const CLI::Option* option, bool is_positional) const {
  std::string line = "  " + names_text(option, is_positional);
  if (line.size() + 2 > kNameColumns)
    line += "\n" + std::string(kNameColumns, ' ');
  else
    line.resize(kNameColumns, ' ');
  return line + wrapped(description_text(option, is_positional), kNameColumns) + "\n";
}

std::string HelpFormatter::make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const {
  if (app->get_parent() == nullptr) return Formatter::make_help(app, name, mode);
  const bool is_short = mode == CLI::AppFormatMode::Normal;
  return make_description(app) + "\n" + make_usage(app, name) + make_positionals(app) +
         (is_short ? groups_text(*this, app, kShortGroups) : groups_text(*this, app, kAllGroups)) +
         (is_short ? other_groups(app, name) : "") + "\n" + make_footer(app);
}

std::string HelpFormatter::make_expanded(const CLI::App* command) const {
  const std::string title = command->get_name() + ": " + make_description(command);
  return title + make_positionals(command) + groups_text(*this, command, kAllGroups);
}

}  // namespace thimble
