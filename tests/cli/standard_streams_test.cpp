// standard_streams_test.cpp: standard output and error that cannot be written: what a run says about itself is dropped,
// a result that nobody gets is exit code 5.
#include "tests/cli/cli_fixture.h"

namespace thimble::testing::standard_streams_test {
namespace {

class StandardStreamsTest : public CliTest {
 protected:
  // Standard errors that take nothing, by name.
  static std::vector<std::pair<std::string, RunOptions>> failing_errors() {
    RunOptions full, closed, unread, unread_and_ignored;
    full.stderr_path = "/dev/full";
    closed.closed = {2};
    unread.stderr_unread = true;
    unread_and_ignored.stderr_unread = true;
    unread_and_ignored.ignored = {SIGPIPE};
    return {{"full", full}, {"closed", closed}, {"unread", unread}, {"unread, ignored", unread_and_ignored}};
  }
};

TEST_F(StandardStreamsTest, DiagnosticsThatCannotBeWrittenAreDropped) {
  for (const auto& [name, options] : failing_errors()) {
    SCOPED_TRACE(name);
    EXPECT_EQ(thimble({"verify", "nope"}, options).exit_code, 5);
    EXPECT_EQ(thimble({"verify", "nope", "--json"}, options).exit_code, 5);
    EXPECT_EQ(thimble({"verify", "config.json"}, options).exit_code, 4);
    EXPECT_EQ(thimble({"verify"}, options).exit_code, 2);
  }
}

TEST_F(StandardStreamsTest, ProgressThatCannotBeWrittenChangesNothing) {
  quantize("reference.thmb");
  for (const auto& [name, options] : failing_errors()) {
    SCOPED_TRACE(name);
    EXPECT_THAT(succeed(quantize_arguments("out.thmb"), options).out, HasSubstr("out.thmb"));
    EXPECT_EQ(contents("out.thmb"), contents("reference.thmb"));
  }
}

// The first file that is opened must not get the number of a closed stream, and what was meant for that.
TEST_F(StandardStreamsTest, NothingThatIsSaidEndsUpInAFile) {
  quantize("reference.thmb");
  RunOptions none;
  none.closed = {0, 1, 2};
  EXPECT_EQ(thimble(quantize_arguments("out.thmb", {"--quiet"}), none).exit_code, 0);
  EXPECT_EQ(contents("out.thmb"), contents("reference.thmb"));
  EXPECT_EQ(thimble({"export", "reference.thmb", "-o", "closed.safetensors"}, none).exit_code, 5)
      << "there is a result to print";
  succeed({"export", "reference.thmb", "-o", "open.safetensors"});
  EXPECT_EQ(contents("closed.safetensors"), contents("open.safetensors"));
}

TEST_F(StandardStreamsTest, AResultThatCannotBeWrittenIsExitCode5) {
  RunOptions full, closed;
  full.stdout_path = "/dev/full";
  closed.closed = {1};
  for (const RunOptions& options : {full, closed})
    for (const Arguments& arguments :
         std::vector<Arguments>{{"--help"}, {"--version"}, {"quantize", "--help"}, {"doctor"}, {"doctor", "--json"}}) {
      SCOPED_TRACE(::testing::PrintToString(arguments));
      RunResult result = thimble(arguments, options);
      EXPECT_EQ(result.exit_code, 5);
      EXPECT_THAT(result.err, AllOf(HasSubstr("standard output"), HasSubstr("write failed")));
    }
}

TEST_F(StandardStreamsTest, BothAtOnce) {
  for (auto [name, options] : failing_errors()) {
    SCOPED_TRACE(name);
    options.stdout_path = "/dev/full";
    EXPECT_EQ(thimble({"doctor"}, options).exit_code, 5);
    EXPECT_EQ(thimble({"--help"}, options).exit_code, 5);
  }
}

}  // namespace
}  // namespace thimble::testing::standard_streams_test
