// help_formatter.h: the help of commands: options under headings, the common ones first. --help shows those alone,
// --help-all everything.
#pragma once

#include <CLI/CLI.hpp>
#include <array>
#include <string>

namespace thimble {

// Headings, for Option::group(). An option without one of them would not be shown.
constexpr const char* kCommonGroup = "Common options";
constexpr const char* kEncodingGroup = "Encoding";
constexpr const char* kCalibrationGroup = "Calibration";
constexpr const char* kSlopeGroup = "Method slope";
constexpr const char* kTraceGroup = "Method trace";
constexpr const char* kEvaluationGroup = "Evaluation";
constexpr const char* kResumeGroup = "Resuming";
constexpr const char* kGeneralGroup = "Help and output";
constexpr const char* kMachineGroup = "Machine and seed";

class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;
  std::string make_expanded(const CLI::App* command) const override;  // below the program's --help-all
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
};

}  // namespace thimble
