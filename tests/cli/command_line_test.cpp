// command_line_test.cpp: what every command has in common: --help, --version, --json, --quiet, output for people.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <set>

#include "tests/cli/cli_fixture.h"

namespace thimble::testing::command_line_test {
namespace {

using ::testing::IsSupersetOf;
using ::testing::MatchesRegex;

const std::vector<std::string> kCommands = {"quantize", "eval",     "budget", "inspect",  "verify", "export",
                                            "generate", "tokenize", "audit",  "numerics", "doctor"};

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
            {"tokenize", "text.txt", "-o", "new.bin", "--tokenizer", "sp.model"},
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
    for (const char* option : {"--json", "--quiet", "--help-all"}) EXPECT_THAT(help.out, HasSubstr(option));
    EXPECT_EQ(help.err, "");
    EXPECT_THAT(help.out, Not(HasSubstr("--device-memory")));
    RunResult all = succeed({command, "--help-all"});
    for (const char* option :
         {"--json", "--quiet", "--threads", "--seed", "--device", "--numerics", "--device-memory", "--memory"})
      EXPECT_THAT(all.out, HasSubstr("  " + std::string(option)));
    EXPECT_THAT(all.out, HasSubstr("Example:\n  thimble " + command));
  }
}

// Every option that a command takes stands under one of the headings.
TEST_F(CliTest, HelpIsInGroupsWithTheCommonOptionsFirst) {
  const std::string common = succeed({"quantize", "--help"}).out, all = succeed({"quantize", "--help-all"}).out;
  for (const char* option : {"--output", "--budget", "--code", "--method", "--tokens", "--tokenizer"})
    EXPECT_THAT(common, HasSubstr(std::string(option) + " "));
  EXPECT_THAT(common, HasSubstr("`thimble quantize --help-all` also shows: calibration"));
  size_t at = 0;
  for (const char* heading : {"Common options", "Calibration", "Encoding", "Method slope", "Method trace", "Evaluation",
                              "Resuming", "Machine and seed", "Help and output"}) {
    const size_t found = all.find("\n" + std::string(heading) + ":\n");
    ASSERT_NE(found, std::string::npos) << heading;
    EXPECT_GT(found, at) << heading;
    at = found;
  }
  for (const char* option : {"--hessians", "--log2-step", "--trellis-bits", "--bits", "--high", "--stride", "--codec",
                             "--rate-bound", "--work-dir", "--no-resume", "--seed"}) {
    EXPECT_THAT(all, HasSubstr("\n  " + std::string(option)));
    EXPECT_THAT(common, Not(HasSubstr("\n  " + std::string(option) + " ")));
  }
  for (const std::string& text : {common, all, succeed({"--help"}).out})
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = text.find('\n', begin);
      EXPECT_LE(end - begin, 104) << text.substr(begin, end - begin);
      begin = end + 1;
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
      {"shards", "tokens", "token_bytes", "vocabulary", "documents", "text_bytes", "counted_bytes"},
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
  const std::vector<std::string> expected = {
      "bits per parameter", "bytes of text",   " B\n",     "bits/weight",    "encoded again", "tensors as F32", "",
      "bytes per token",    "pass  causality", "of bound", "instruction set"};
  std::vector<Arguments> all = calls();
  ASSERT_EQ(all.size(), expected.size());
  for (size_t i = 0; i < all.size(); ++i) {
    RunResult result = succeed(all[i]);
    EXPECT_THAT(result.out, HasSubstr(expected[i])) << all[i][0];
    EXPECT_FALSE(Json::accept(result.out)) << all[i][0];
    EXPECT_THAT(result.out, ::testing::EndsWith("\n")) << all[i][0];
  }
}

// How many stages take long enough for a line is up to the machine, but each has one line at most.
TEST_F(CommandLineTest, ProgressGoesToStandardErrorInPlainLines) {
  RunResult result = succeed(quantize_arguments("second.thmb", scoring()));
  EXPECT_LE(std::ranges::count(result.err, '\n'), 6) << result.err;
  EXPECT_THAT(result.err, Not(HasSubstr("\r")));
  EXPECT_THAT(result.err, Not(HasSubstr("\033")));
  for (const char* stage : {"collecting statistics", "searching"}) EXPECT_THAT(result.out, Not(HasSubstr(stage)));
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
  for (const char* stage : {"writing calibration text", "collecting statistics", "searching"})
    EXPECT_THAT(result.err, HasSubstr("\r\033[K" + std::string(stage)));
  EXPECT_THAT(result.err, AllOf(HasSubstr(" [  "), HasSubstr("whole run "), HasSubstr("s left")));
  // Whatever is left on the screen are whole lines.
  const size_t last = result.err.find_last_of("\n\r");
  EXPECT_TRUE(last == result.err.size() - 1 || result.err.substr(last) == "\r\033[K") << result.err.substr(last);
  // The document is not disturbed, and neither is the user who waits for it.
  result = succeed(quantize_arguments("second.thmb", {"--json"}), terminal);
  EXPECT_THAT(result.err, HasSubstr("writing calibration text"));
  EXPECT_TRUE(Json::accept(result.out));
  EXPECT_EQ(succeed(quantize_arguments("second.thmb", {"--quiet"}), terminal).err, "");
}

// The stages of a run as their bars name them, in order; every step draws at least once.
std::vector<std::string> stages_drawn(const std::string& err) {
  const std::string redraw = "\r\033[K";
  std::vector<std::string> stages;
  for (size_t at = err.find(redraw); at != std::string::npos; at = err.find(redraw, at)) {
    at += redraw.size();
    const std::string line = err.substr(at, err.find_first_of("\r\n", at) - at);
    if (line.find(" [") == std::string::npos) continue;
    std::string name = line.substr(0, line.find(" ["));
    name.erase(name.find_last_not_of(' ') + 1);
    if (stages.empty() || stages.back() != name) stages.push_back(name);
  }
  return stages;
}

// However often a search solves and encodes: one stage, so one line at most, elsewhere too.
TEST_F(CommandLineTest, ARunHasAFewStagesInOrder) {
  if (!can_open_terminal()) GTEST_SKIP() << "no pseudo-terminals here";
  RunOptions terminal;
  terminal.terminal = true;
  auto stages_of = [&](const Arguments& arguments) { return stages_drawn(succeed(arguments, terminal).err); };
  const Arguments slope = without_option(quantize_arguments("second.thmb", {"--budget", "24000"}), "--method");
  EXPECT_EQ(stages_of(slope + scoring()), (Arguments{"checking the budget", "writing calibration text",
                                                     "collecting statistics", "searching", "scoring"}));
  EXPECT_EQ(stages_of(quantize_arguments("second.thmb", {"--budget", "26000"})),
            (Arguments{"checking the budget", "writing calibration text", "collecting statistics", "searching"}));
  EXPECT_EQ(
      stages_of(Arguments{"sweep", "model.safetensors", "-o", "curve", "--budgets", "24000,26000"} +
                Arguments{"--min-elements", "100", "--calibration-sequences", "3", "--calibration-length", "32"} +
                scoring()),
      (Arguments{"scoring the original", "writing calibration text", "collecting statistics", "fitting and scoring"}));
  EXPECT_EQ(stages_of(Arguments{"eval", "model.safetensors", "model.thmb"} + scoring()), Arguments{"scoring"});
  EXPECT_EQ(stages_of(Arguments{"audit", "model.thmb"} + scoring()), (Arguments{"scoring", "auditing"}));
  EXPECT_EQ(stages_of({"verify", "model.thmb"}), Arguments{"verifying"});
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
  const std::string before = result.err.substr(0, message);
  EXPECT_TRUE(before.ends_with("\n") || before.ends_with("\r\033[K")) << result.err;
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
}  // namespace thimble::testing::command_line_test
