// main.cpp: parses the command line, runs one command, and turns errors into messages and exit codes.
#include <fmt/format.h>

#include <cstdio>
#include <new>

#include "quantizer/commands.h"
#include "quantizer/version.h"
#include "runtime/error.h"
#include "runtime/parallel.h"

namespace thimble {
namespace {

int report_error(const CommandLine& line, ExitCode code, const std::string& message) {
  if (line.common.json) {
    Json json = {{"error", {{"exit_code", static_cast<int>(code)}, {"message", message}}}};
    fmt::print(stderr, "{}\n", json.dump(-1, ' ', false, Json::error_handler_t::replace));
  } else {
    fmt::print(stderr, "thimble: {}\n", message);
  }
  return static_cast<int>(code);
}

void add_all_commands(CommandLine& line) {
  line.app.set_version_flag("--version", std::string("thimble ") + kVersion);
  line.app.require_subcommand(1);
  line.app.footer(
      "`thimble COMMAND --help` shows a command's options and an example. Sizes are decimal bytes.\n"
      "Exit codes: 0 ok, 1 internal, 2 usage, 3 budget or check not met, 4 bad input, 5 input/output, 6 device.");
  add_quantize_command(line);
  add_eval_command(line);
  add_budget_command(line);
  add_inspect_command(line);
  add_verify_command(line);
  add_export_command(line);
  add_generate_command(line);
  add_audit_command(line);
  add_doctor_command(line);
}

int run(int argc, char** argv) {
  CommandLine line;
  add_all_commands(line);
  try {
    line.app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help and --version
    return line.app.exit(success);
  } catch (const CLI::ParseError& error) {
    return report_error(line, ExitCode::kUsage, std::string(error.what()) + "\nRun with --help for more information.");
  }
  try {
    ThreadLimit threads(line.common.threads);
    Console console(line.common);
    line.action(console);
    return static_cast<int>(ExitCode::kOk);
  } catch (const Error& error) {
    return report_error(line, error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return report_error(line, ExitCode::kInternal, "out of memory");
  } catch (const std::exception& error) {
    return report_error(line, ExitCode::kInternal, std::string("internal error: ") + error.what());
  }
}

}  // namespace
}  // namespace thimble

int main(int argc, char** argv) { return thimble::run(argc, argv); }
