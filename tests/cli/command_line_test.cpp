// command_line_test.cpp: what every command has in common: --help, --version, --json, --quiet, output for people.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <set>

#include "tests/cli/cli_fixture.h"

namespace thimble::testing {
namespace {

using ::testing::IsSupersetOf;
using ::testing::MatchesRegex;

const std::vector<std::string> kCommands = {"quantize", "eval",     "budget", "inspect",  "verify",
                                            "export",   "generate", "audit",  "numerics", "doctor"};

// Top-level keys of a JSON object.
std::set<std::string> keys_of(const Json& object) {
  std::set<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.insert(key);
  return keys;
}

class CommandLineTest : public CliTest {
 protected:
  CommandLineTest() { quantize("model.thmb"); }

  // A correct call of each command.
  std::vector<Arguments> calls() const {
    return {quantize_arguments("second.thmb"),
            Arguments{"eval", "model.thmb"} + scoring(),
            {"budget", "model.thmb", "--limit", "1000000"},
            {"inspect", "model.thmb"},
            {"verify", "model.thmb"},
            {"export", "model.thmb", "-o", "back.safetensors"},
            {"generate", "model.thmb", "--tokenizer", "sp.model", "--length", "5"},
            Arguments{"audit", "model.thmb"} + scoring(),
            {"numerics", "--max-elements", "300", "--op", "gelu"},
            {"doctor"}};
  }
};

TEST_F(CliTest, HelpShowsEveryCommandAndTheExitCodes) {
  RunResult help = succeed({"--help"});
  for (const std::string& command : kCommands) EXPECT_THAT(help.out, HasSubstr("\n  " + command + " "));
  EXPECT_THAT(help.out, HasSubstr("0 ok, 1 internal, 2 usage, 3 budget or check not met, 4 bad input, 5 input/output"));
  EXPECT_EQ(help.err, "");
}

TEST_F(CliTest, HelpOfACommandShowsAnExampleAndTheSharedOptions) {
  for (const std::string& command : kCommands) {
    SCOPED_TRACE(command);
    RunResult help = succeed({command, "--help"});
    EXPECT_THAT(help.out, HasSubstr("Usage: thimble " + command + " "));
    EXPECT_THAT(help.out, HasSubstr("Example:\n  thimble " + command));
    for (const char* option : {"--json", "--quiet", "--threads", "--seed", "--device", "--numerics", "--device-memory"})
      EXPECT_THAT(help.out, HasSubstr(option));
    EXPECT_EQ(help.err, "");
  }
}

TEST_F(CliTest, VersionIsOneLine) {
  EXPECT_THAT(succeed({"--version"}).out, MatchesRegex("thimble [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

TEST_F(CommandLineTest, TheExamplesOfTheHelpAreAccepted) {
  // Their options parse: what then fails are the files they name.
  for (const std::string& command : kCommands) {
    std::string help = succeed({command, "--help"}).out;
    std::string example = help.substr(help.find("Example:\n  thimble ") + 19);
    example = example.substr(0, example.find('\n'));
    Arguments arguments;
    std::string word;
    bool quoted = false;
    for (char c : example + " ") {
      if (c == '"') {
        quoted = !quoted;
      } else if (c == ' ' && !quoted) {
        arguments.push_back(std::exchange(word, ""));
      } else {
        word += c;
      }
    }
    RunResult result = thimble(arguments);
    EXPECT_NE(result.exit_code, 2) << example << "\n" << result.err;
  }
}

TEST_F(CommandLineTest, QuietPrintsNothing) {
  for (const Arguments& call : calls()) {
    SCOPED_TRACE(call[0]);
    RunResult result = succeed(call + Arguments{"--quiet"});
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(result.err, "");
  }
}

TEST_F(CommandLineTest, JsonIsOneDocumentAlsoWhenQuiet) {
  for (const Arguments& call : calls()) {
    SCOPED_TRACE(call[0]);
    Json document = succeed_json(call);
    EXPECT_TRUE(document.is_object());
    EXPECT_EQ(keys_of(succeed_json(call + Arguments{"--quiet"})), keys_of(document));
  }
}

TEST_F(CommandLineTest, JsonHasTheDocumentedKeys) {
  const std::vector<std::set<std::string>> expected = {
      {"output", "parameters", "original_bytes", "artifact_bytes", "code_bytes", "total_bytes", "bits_per_parameter",
       "high_count", "pruned_codes", "encodes", "device", "layers", "seconds", "peak_memory_bytes"},
      {"device", "evaluations"},
      {"artifact_bytes", "code_bytes", "total_bytes", "limit_bytes", "fits"},
      {"path", "file_bytes", "container_bytes", "format_version", "parameters", "bits_per_parameter", "banked",
       "config", "provenance", "tensors", "sections"},
      {"path", "checksums", "decodes", "canonical", "identical", "recompressed_differently", "problem"},
      {"output", "tensors", "dtype", "banked"},
      {"text", "tokens", "seed", "temperature", "device"},
      {"checks", "passed", "device"},
      {"passed", "rows", "device"},
      {"version", "compiler", "instruction_set", "threads", "device", "cuda_runtime", "cuda_devices", "libraries"}};
  std::vector<Arguments> all = calls();
  ASSERT_EQ(all.size(), expected.size());
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(all[i][0]);
    EXPECT_THAT(keys_of(succeed_json(all[i])), IsSupersetOf(expected[i]));
  }
}

TEST_F(CommandLineTest, ReportsNameTheDevice) {
  const std::string cpu = "cpu (" + std::string(succeed_json({"doctor"}).at("instruction_set")) + ")";
  const Arguments on_cpu = {"--device", "cpu"};
  for (const Arguments& call :
       {quantize_arguments("second.thmb", on_cpu), Arguments{"eval", "model.thmb"} + scoring() + on_cpu,
        Arguments{"audit", "model.thmb"} + scoring() + on_cpu, Arguments{"doctor"} + on_cpu}) {
    EXPECT_EQ(succeed_json(call).at("device"), cpu) << call[0];
    EXPECT_THAT(succeed(call).out, HasSubstr(cpu)) << call[0];
  }
}

TEST_F(CommandLineTest, HumanOutputNamesItsUnits) {
  const std::vector<std::string> expected = {"bits per parameter", "bytes of text",  " B\n", "bits/weight",
                                             "encoded again",      "tensors as F32", "",     "pass  causality",
                                             "of bound",           "instruction set"};
  std::vector<Arguments> all = calls();
  ASSERT_EQ(all.size(), expected.size());
  for (size_t i = 0; i < all.size(); ++i) {
    RunResult result = succeed(all[i]);
    EXPECT_THAT(result.out, HasSubstr(expected[i])) << all[i][0];
    EXPECT_FALSE(Json::accept(result.out)) << all[i][0];
    EXPECT_THAT(result.out, ::testing::EndsWith("\n")) << all[i][0];
  }
}

TEST_F(CommandLineTest, ProgressGoesToStandardErrorInPlainLines) {
  RunResult result = succeed(quantize_arguments("second.thmb"));
  for (const char* stage : {"generating calibration", "collecting Hessians", "solving layers", "packing"}) {
    EXPECT_THAT(result.err, HasSubstr(stage));
    EXPECT_THAT(result.out, Not(HasSubstr(stage)));
  }
  EXPECT_THAT(result.err, Not(HasSubstr("\r")));
  EXPECT_THAT(result.err, Not(HasSubstr("\033")));
}

// Containers and bare chroots may have no pseudo-terminals.
bool can_open_terminal() {
  int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal >= 0) ::close(terminal);
  return terminal >= 0;
}

TEST_F(CommandLineTest, OnATerminalProgressIsABar) {
  if (!can_open_terminal()) GTEST_SKIP() << "no pseudo-terminals here";
  RunOptions terminal;
  terminal.terminal = true;
  RunResult result = succeed(quantize_arguments("second.thmb"), terminal);
  EXPECT_THAT(result.err, AllOf(HasSubstr("\r\033[K"), HasSubstr("generating calibration   [  "), HasSubstr("% 0/")));
  EXPECT_THAT(result.err, ::testing::EndsWith("\n"));
  // The document is not disturbed, and neither is the user who waits for it.
  result = succeed(quantize_arguments("second.thmb", {"--json"}), terminal);
  EXPECT_THAT(result.err, HasSubstr("generating calibration"));
  EXPECT_TRUE(Json::accept(result.out));
  EXPECT_EQ(succeed(quantize_arguments("second.thmb", {"--quiet"}), terminal).err, "");
}

// The bar that an error interrupts is left before the message begins.
TEST_F(CommandLineTest, OnATerminalAnErrorBeginsALine) {
  if (!can_open_terminal()) GTEST_SKIP() << "no pseudo-terminals here";
  RunOptions terminal;
  terminal.terminal = true;
  terminal.limits = {{RLIMIT_FSIZE, 1000}};
  RunResult result = thimble(quantize_arguments("second.thmb"), terminal);
  EXPECT_EQ(result.exit_code, 5);
  size_t message = result.err.find("thimble: ");
  ASSERT_NE(message, std::string::npos);
  EXPECT_EQ(result.err.substr(0, message).find_last_of('\n'), message - 1) << result.err;
}

TEST_F(CommandLineTest, ResultsDoNotDependOnTheNumberOfThreads) {
  for (const char* command : {"eval", "audit"}) {
    Json one = succeed_json(Arguments{command, "model.thmb"} + scoring() + Arguments{"--threads", "1"});
    Json two = succeed_json(Arguments{command, "model.thmb"} + scoring() + Arguments{"--threads", "2"});
    for (Json* json : {&one, &two})
      if (json->contains("evaluations")) json->at("evaluations") = without_times(json->at("evaluations").at(0));
    EXPECT_EQ(one, two) << command;
  }
}

TEST_F(CommandLineTest, DoctorCountsTheThreadsItMayUse) {
  EXPECT_EQ(succeed_json({"doctor", "--threads", "1"}).at("threads"), 1);
}

TEST_F(CommandLineTest, AnOutputThatCannotBeWrittenIsAnError) {
  if (!file_exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  RunOptions full;
  full.stdout_path = "/dev/full";
  for (const Arguments& arguments : {Arguments{"inspect", "model.thmb"}, Arguments{"inspect", "model.thmb", "--json"},
                                     Arguments{"--help"}, Arguments{"--version"}}) {
    RunResult result = thimble(arguments, full);
    EXPECT_EQ(result.exit_code, 5) << arguments[0];
    EXPECT_THAT(result.err, HasSubstr("standard output: write failed")) << arguments[0];
  }
}

}  // namespace
}  // namespace thimble::testing
