// main.cpp: parses the command line, runs one command, and turns errors into messages and exit codes.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <iostream>
#include <memory>
#include <new>
#include <system_error>
#include <thread>

#include "quantizer/commands/commands.h"
#include "quantizer/console/diagnostics.h"
#include "quantizer/console/suggestion.h"
#include "quantizer/console/version.h"
#include "quantizer/ranks/join_ranks.h"
#include "runtime/base/error.h"
#include "runtime/base/parallel.h"

namespace thimble {
namespace {

// A mistake in the command line or a missing file meets all ranks at once; rank 0, which needs no such pause before it
// speaks, then reports it for all.
constexpr std::chrono::seconds kRootSpeaksFirst(1);

int report_error(bool as_json, ExitCode code, const std::string& message) {
  if (as_json) {
    Json json = {{"error", {{"exit_code", static_cast<int>(code)}, {"message", message}}}};
    say(json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  } else {
    say("thimble: " + message + "\n");
  }
  return static_cast<int>(code);
}

// Reports an error of this rank, and ends the others.
int fail(Ranks& ranks, bool as_json, ExitCode code, std::string message) {
  if (!ranks.is_root()) {
    std::this_thread::sleep_for(kRootSpeaksFirst);
    message = fmt::format("rank {} of {}: {}", ranks.rank(), ranks.size(), message);
  }
  int exit_code = report_error(as_json, code, message);
  ranks.end_all(exit_code);
  return exit_code;
}

void add_all_commands(CommandLine& line) {
  line.app.set_version_flag("--version", std::string("thimble ") + kVersion);
  line.app.require_subcommand(1);
  auto formatter = std::make_shared<HelpFormatter>();
  for (const auto& [label, text] : {std::pair("SUBCOMMAND", "COMMAND"), std::pair("Positionals", "Arguments")})
    formatter->label(label, text);
  line.app.formatter(formatter);
  line.app.set_help_flag("-h,--help", "Show what is commonly used");
  line.app.set_help_all_flag("--help-all", "Show all options");
  line.app.footer(
      "`thimble COMMAND --help` shows how a command is used, with an example; --help-all shows all its options.\n"
      "Sizes are bytes, also as 16M, 16MB, 1.5e6 (decimal) or 16MiB.\n"
      "Exit codes: 0 ok, 1 internal, 2 usage, 3 budget or check not met, 4 bad input, 5 input/output, 6 device.");
  for (auto* add : {add_quantize_command, add_eval_command, add_sweep_command, add_budget_command, add_inspect_command,
                    add_verify_command, add_export_command, add_loader_command, add_generate_command,
                    add_tokenize_command, add_audit_command, add_numerics_command, add_doctor_command})
    add(line);
}

// The options that decide what a rank says: rank 0 speaks for all.
CommonOptions spoken_options(const CommonOptions& common, const Ranks& ranks) {
  CommonOptions spoken = common;
  if (!ranks.is_root()) {
    spoken.json = false;
    spoken.quiet = true;
  }
  return spoken;
}

int run(Ranks& ranks, bool json, int argc, char** argv) {
  CommandLine line{ranks};
  add_all_commands(line);
  try {
    line.app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help and --version
    if (ranks.is_root()) line.app.exit(success);
    if (!std::cout.flush()) return fail(ranks, json, ExitCode::kIo, "standard output: write failed");
    return static_cast<int>(ExitCode::kOk);
  } catch (const CLI::ParseError& error) {
    return fail(ranks, json, ExitCode::kUsage,
                usage_message(line.app, error) + "\nRun with --help for more information.");
  }
  try {
    // Never taken back: at the end of a limit TBB starts the threads that it held back, and where the system lets none
    // start, ends the program.
    [[maybe_unused]] static const ThreadLimit& threads = *new ThreadLimit(line.common.threads);
    Console console(spoken_options(line.common, ranks));
    if (ranks.is_root() || line.uses_all_ranks) line.action(console);
    return static_cast<int>(ExitCode::kOk);
  } catch (const Error& error) {
    return fail(ranks, json, error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return fail(ranks, json, ExitCode::kInternal, "out of memory");
  } catch (const std::system_error& error) {
    const bool is_thread = error.code() == std::errc::resource_unavailable_try_again;
    return fail(ranks, json, ExitCode::kInternal,
                is_thread ? "the system does not let another thread start; raise its limit on processes (ulimit -u)"
                          : std::string("internal error: ") + error.what());
  } catch (const std::exception& error) {
    return fail(ranks, json, ExitCode::kInternal, std::string("internal error: ") + error.what());
  }
}

int run(int argc, char** argv) {
  if (!occupy_standard_streams()) return static_cast<int>(ExitCode::kIo);
  // A file that outgrows a limit of the shell is an error of the write then, with a message and cleaning up.
  std::signal(SIGXFSZ, SIG_IGN);
  // Known before parsing, which may fail.
  bool json = std::any_of(argv + 1, argv + argc, [](std::string_view argument) { return argument == "--json"; });
  try {
    std::unique_ptr<Ranks> ranks = join_ranks();
    return run(*ranks, json, argc, argv);
  } catch (const Error& error) {  // no ranks to tell
    return report_error(json, error.code(), error.what());
  }
}

}  // namespace
}  // namespace thimble

int main(int argc, char** argv) { return thimble::run(argc, argv); }
