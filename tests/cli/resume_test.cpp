// resume_test.cpp: a quantize run that is killed, at whatever moment, continues where it was and gives the bytes of an
// undisturbed run; and the work folder holds nothing that could make it give others.
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <map>

#include "tests/cli/cli_fixture.h"

namespace thimble::testing::resume_test {
namespace {

class ResumeTest : public CliTest {
 protected:
  ResumeTest() { quantize("reference.thmb"); }

  // Finished results in the work folder, by name.
  std::vector<std::string> results(const std::string& folder = "out.thmb.work") const {
    std::vector<std::string> found;
    std::error_code missing;
    for (const auto& entry : std::filesystem::directory_iterator(path(folder), missing))
      if (entry.path().extension() == ".safetensors") found.push_back(entry.path().filename().string());
    std::sort(found.begin(), found.end());
    return found;
  }

  // A later piece takes the place of this one.
  static bool is_passing(const std::string& name) { return name.starts_with("sums-") || name.starts_with("learning-"); }

  size_t lasting_results() const {
    const std::vector<std::string> found = results();
    return found.size() - static_cast<size_t>(std::ranges::count_if(found, is_passing));
  }

  // What tells a file from one written later under its name.
  std::map<std::string, ino_t> identities(const std::string& folder = "out.thmb.work") const {
    std::map<std::string, ino_t> found;
    for (const std::string& name : results(folder)) {
      struct stat info {};
      ::stat(path(folder + "/" + name).c_str(), &info);
      found[name] = info.st_ino;
    }
    return found;
  }

  // What a killed run had kept was neither written again nor lost, but for what a later piece has replaced.
  void expect_kept(const std::map<std::string, ino_t>& before) const {
    const std::map<std::string, ino_t> now = identities();
    for (const auto& [name, identity] : before) {
      if (is_passing(name)) continue;
      if (now.contains(name)) {
        EXPECT_EQ(now.at(name), identity) << name << " was computed again";
      } else {
        EXPECT_THAT(name, ::testing::StartsWith("solution-"));
      }
    }
  }

  // A run that gets the signal when something is kept in that folder; again from the start if it was done before that.
  RunResult interrupted(const Arguments& arguments, int signal, const std::string& folder = "out.thmb.work") const {
    RunOptions options;
    options.kill_signal = signal;
    options.kill_when = [&] { return !results(folder).empty(); };
    RunResult result;
    for (int attempt = 0; attempt < 20 && result.signal != signal; ++attempt) {
      for (const char* output : {"out.thmb", "curve.json"}) std::filesystem::remove(path(output));
      result = thimble(arguments, options);
    }
    EXPECT_EQ(result.signal, signal) << "every run ended before it could be interrupted";
    return result;
  }

  void expect_reference() const { EXPECT_EQ(contents("out.thmb"), contents("reference.thmb")); }
};

class TraceResumeTest : public ResumeTest {
 protected:
  TraceResumeTest() { trace("reference.thmb"); }
};

TEST_F(ResumeTest, NothingIsLeftAfterSuccess) {
  quantize("out.thmb");
  EXPECT_FALSE(exists("out.thmb.work"));
  quantize("out.thmb", {"--no-resume"});
  EXPECT_FALSE(exists("out.thmb.work"));
  expect_reference();
}

TEST_F(TraceResumeTest, KeepWorkKeepsEveryStep) {
  trace("out.thmb", {"--keep-work"});
  std::map<std::string, int> kinds;
  for (const std::string& name : results()) ++kinds[name.substr(0, name.find('-'))];
  const int sections = kinds["section"];
  EXPECT_GT(sections, 14);
  EXPECT_EQ(kinds,
            (std::map<std::string, int>{{"tokens", 1}, {"hessians", 1}, {"solution", 14}, {"section", sections}}));
  // The next run uses all of it and computes nothing.
  std::map<std::string, ino_t> before = identities();
  trace("out.thmb", {"--keep-work"});
  EXPECT_EQ(identities(), before);
  expect_reference();
  trace("out.thmb");
  EXPECT_FALSE(exists("out.thmb.work"));
}

TEST_F(ResumeTest, AnotherWorkFolder) {
  std::filesystem::create_directory(path("mine"));
  for (const char* name : {"mine/tokens-of-mine.bin", "mine/solution-it.txt", "mine/hessians-0123.safetensors"})
    write(name, "the user's own");
  quantize("out.thmb", {"--work-dir", "mine"});
  EXPECT_FALSE(exists("out.thmb.work"));
  EXPECT_EQ(results("mine"), Arguments{"hessians-0123.safetensors"});
  EXPECT_TRUE(exists("mine/tokens-of-mine.bin"));
  EXPECT_TRUE(exists("mine/solution-it.txt"));
  std::filesystem::create_directory(path("real"));
  std::filesystem::create_directory_symlink("real", path("link"));
  quantize("out.thmb", {"--work-dir", "link"});
  EXPECT_TRUE(std::filesystem::is_symlink(path("link")));
  expect_reference();
}

// Kills the run as soon as so many results exist; then a second run finishes it.
TEST_F(TraceResumeTest, KilledRunsContinue) {
  int killed = 0;
  for (size_t steps : {0, 1, 2, 3, 5, 8, 12}) {
    SCOPED_TRACE(steps);
    std::filesystem::remove(path("out.thmb"));
    RunOptions options;
    options.kill_when = [&] { return exists("out.thmb.work") && lasting_results() >= steps; };
    RunResult result = thimble(trace_arguments("out.thmb", {"--threads", "1"}), options);
    ASSERT_TRUE(result.signal == SIGKILL || result.exit_code == 0) << result.err;
    if (result.signal == SIGKILL && !exists("out.thmb")) {
      ++killed;
      std::map<std::string, ino_t> finished = identities();
      EXPECT_GE(lasting_results(), steps);
      trace("out.thmb", {"--keep-work"});
      std::map<std::string, ino_t> now = identities();
      expect_kept(finished);
      EXPECT_GT(now.size(), 16);
    }
    trace("out.thmb");
    EXPECT_FALSE(exists("out.thmb.work")) << "also without the temporary files of the killed run";
    expect_reference();
  }
  EXPECT_GT(killed, 0) << "every run ended before it could be killed";
}

TEST_F(ResumeTest, AKilledSearchContinues) {
  const Arguments arguments = {"quantize",
                               "model.safetensors",
                               "-o",
                               "out.thmb",
                               "--min-elements",
                               "100",
                               "--calibration-sequences",
                               "4",
                               "--calibration-length",
                               "32",
                               "--distill-steps",
                               "200",
                               "--budget",
                               "12000"};
  succeed(arguments + Arguments{"--no-resume"});
  const ByteVector undisturbed = contents("out.thmb");
  std::filesystem::remove(path("out.thmb"));

  RunOptions options;
  options.kill_when = [&] {
    const std::vector<std::string> found = results();
    return std::ranges::count_if(found, [](const std::string& name) { return name.starts_with("solution-"); }) >= 20;
  };
  const RunResult killed = thimble(arguments, options);
  ASSERT_EQ(killed.signal, SIGKILL) << "the run ended before it could be killed";
  ASSERT_FALSE(exists("out.thmb"));
  const std::map<std::string, ino_t> finished = identities();
  succeed(arguments + Arguments{"--keep-work"});
  expect_kept(finished);
  EXPECT_EQ(contents("out.thmb"), undisturbed);
}

// One line says how to go on, and the run ends as the signal ends a program.
TEST_F(ResumeTest, AnInterruptedRunSaysThatItResumes) {
  for (int signal : {SIGINT, SIGTERM}) {
    SCOPED_TRACE(signal);
    const RunResult result = interrupted(quantize_arguments("out.thmb", {"--threads", "1"}), signal);
    EXPECT_TRUE(
        result.err.ends_with("thimble: interrupted; the same command goes on from the work folder 'out.thmb.work'\n"))
        << result.err;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path(".")))
      EXPECT_THAT(entry.path().string(), Not(HasSubstr(".tmp")));
    quantize("out.thmb");
    expect_reference();
  }
}

TEST_F(ResumeTest, AnInterruptedSweepResumesToo) {
  const Arguments sweep =
      Arguments{"sweep", "model.safetensors", "-o", "curve", "--methods", "trace", "--threads", "1"} +
      Arguments{"--budgets", "30000", "--min-elements", "100", "--calibration-sequences", "3"} +
      Arguments{"--calibration-length", "32", "--codec", "zstd"} + scoring();
  const RunResult result = interrupted(sweep, SIGTERM, "curve.work");
  EXPECT_THAT(result.err, HasSubstr("the same command goes on from the work folder 'curve.work'\n"));
  succeed(sweep);
  EXPECT_TRUE(exists("curve.csv"));
  EXPECT_FALSE(exists("curve.work"));
}

TEST_F(ResumeTest, AnInterruptionIsJsonToo) {
  const RunResult result = interrupted(quantize_arguments("out.thmb", {"--threads", "1", "--json"}), SIGINT);
  ASSERT_TRUE(Json::accept(result.err)) << result.err;
  EXPECT_THAT(Json::parse(result.err).at("interrupted").at("message").get<std::string>(), HasSubstr("'out.thmb.work'"));
}

// As a run leaves them that is killed between giving its temporary a name and renaming it.
TEST_F(ResumeTest, TemporariesOfKilledRunsAreRemoved) {
  for (const char* name : {"out.thmb.tmp1234.0", "h.safetensors.tmp99999999.7", "back.safetensors.tmp1.0"})
    write(name, "half of it");
  write("out.thmb.tmp.mine", "the user's own");
  quantize("out.thmb", {"--save-hessians", "h.safetensors"});
  succeed({"export", "out.thmb", "-o", "back.safetensors"});
  ASSERT_TRUE(exists("out.thmb.tmp.mine"));
  std::filesystem::remove(path("out.thmb.tmp.mine"));
  for (const std::string& name : names()) EXPECT_THAT(name, Not(HasSubstr(".tmp")));
}

TEST_F(ResumeTest, AnInterruptedRunThatKeepsNothingSaysNothing) {
  RunOptions options;
  options.kill_signal = SIGINT;
  options.kill_when = [] { return true; };
  const RunResult result = thimble(quantize_arguments("out.thmb", {"--no-resume"}), options);
  EXPECT_EQ(result.signal, SIGINT);
  EXPECT_THAT(result.err, Not(HasSubstr("interrupted")));
  EXPECT_FALSE(exists("out.thmb"));
}

// Under nohup, say, or in the background of a script.
TEST_F(ResumeTest, ASignalThatIsIgnoredStaysIgnored) {
  RunOptions options;
  options.ignored = {SIGINT};
  options.kill_signal = SIGINT;
  options.kill_when = [&] { return !results().empty(); };
  EXPECT_THAT(succeed(quantize_arguments("out.thmb", {"--threads", "1"}), options).err, Not(HasSubstr("interrupted")));
  expect_reference();
}

TEST_F(ResumeTest, KilledAgainAndAgain) {
  for (size_t round = 1; !exists("out.thmb"); ++round) {
    ASSERT_LT(round, 100) << "no progress";
    size_t before = results().size();
    RunOptions options;
    options.kill_when = [&] { return results().size() > before; };
    thimble(quantize_arguments("out.thmb"), options);
  }
  quantize("out.thmb");
  expect_reference();
}

// A pass for every Hessian, and each in a file: the same artifact, and of the files none is left.
TEST_F(ResumeTest, WithNextToNoMemory) {
  const std::vector<std::string> before = names();
  succeed(quantize_arguments("out.thmb", {"--memory", "1", "--no-resume"}));
  expect_reference();
  std::filesystem::remove(path("out.thmb"));
  EXPECT_EQ(names(), before);
  for (size_t round = 1; !exists("out.thmb"); ++round) {
    ASSERT_LT(round, 200) << "no progress";
    const size_t kept = results().size();
    RunOptions options;
    options.kill_when = [&] { return results().size() > kept; };
    thimble(quantize_arguments("out.thmb", {"--memory", "1"}), options);
  }
  std::filesystem::remove(path("out.thmb"));
  succeed(quantize_arguments("out.thmb", {"--memory", "1", "--keep-work"}));
  expect_reference();
  const std::vector<std::string> pieces = results();
  EXPECT_GT(std::ranges::count_if(pieces, [](const std::string& name) { return name.starts_with("hessians-"); }), 5);
  const std::map<std::string, ino_t> finished = identities();
  succeed(quantize_arguments("out.thmb", {"--memory", "1", "--keep-work"}));
  EXPECT_EQ(identities(), finished);
  expect_reference();
}

// Any subset of the results may be there.
TEST_F(ResumeTest, WhateverIsMissingIsComputed) {
  quantize("out.thmb", {"--keep-work"});
  std::vector<std::string> all = results();
  for (size_t missing = 0; missing < all.size(); missing += 3) {
    std::filesystem::remove(path("out.thmb.work/" + all[missing]));
    if (missing > 0) std::filesystem::remove(path("out.thmb.work/" + all[missing - 1]));
    quantize("out.thmb", {"--keep-work"});
    EXPECT_EQ(results(), all);
    expect_reference();
  }
}

TEST_F(TraceResumeTest, DamagedResultsAreComputedAgain) {
  trace("out.thmb", {"--keep-work"});
  std::map<std::string, std::string> one_of_each;  // kind -> name
  for (const std::string& name : results()) one_of_each.emplace(name.substr(0, name.find('-')), name);
  ASSERT_EQ(one_of_each.size(), 4);
  for (const auto& [kind, name] : one_of_each) {
    std::string file = "out.thmb.work/" + name;
    ByteVector whole = contents(file);
    std::vector<ByteVector> variants = {{}, without_end(whole, 1), without_end(whole, whole.size() / 2)};
    for (size_t at : {size_t{0}, size_t{40}, whole.size() / 2, whole.size() - 30, whole.size() - 1})
      variants.push_back(with_flipped_bit(whole, at));
    for (size_t i = 0; i < variants.size(); ++i) {
      write(file, variants[i]);
      trace("out.thmb", {"--keep-work"});
      expect_reference();
      EXPECT_EQ(contents(file), whole) << kind << ", variant " << i;
    }
  }
}

TEST_F(ResumeTest, ResultsOfAnotherRequestAreNotUsed) {
  quantize("other.thmb", {"--seed", "1"});
  quantize("hot.thmb", {"--temperature", "1.5"});
  quantize("out.thmb", {"--keep-work"});
  for (const auto& [more, expected] :
       std::map<Arguments, std::string>{{{"--seed", "1"}, "other.thmb"}, {{"--temperature", "1.5"}, "hot.thmb"}}) {
    quantize("out.thmb", Arguments{"--keep-work"} + more);
    EXPECT_EQ(contents("out.thmb"), contents(expected)) << more[0];
  }
  // Another checkpoint under the same name.
  write("out.thmb.work/stale", "");
  std::filesystem::remove(path("model.safetensors"));
  write_torch_file(path("model.safetensors"), tiny_weights(99));
  quantize("fresh.thmb");
  quantize("out.thmb");
  EXPECT_EQ(contents("out.thmb"), contents("fresh.thmb"));
  EXPECT_NE(contents("out.thmb"), contents("reference.thmb"));
}

// Sums round differently there: results of two kinds of machine are never mixed.
TEST_F(ResumeTest, ResultsOfAnotherInstructionSetAreNotUsed) {
  if (succeed_json({"doctor"}).at("instruction_set") == "portable") GTEST_SKIP() << "only one instruction set here";
  RunOptions portable;
  portable.environment = {"THIMBLE_ISA=portable"};
  succeed(quantize_arguments("portable.thmb"), portable);
  succeed(quantize_arguments("out.thmb", {"--keep-work"}), portable);
  auto computed = [&] {  // but for packed sections, which are the same everywhere
    const Arguments found = results();
    return std::ranges::count_if(found, [](const std::string& name) { return !name.starts_with("section-"); });
  };
  const auto count = computed();
  quantize("out.thmb", {"--keep-work"});
  EXPECT_EQ(computed(), 2 * count);
  expect_reference();
  succeed(quantize_arguments("out.thmb"), portable);
  EXPECT_EQ(contents("out.thmb"), contents("portable.thmb"));
}

// Precision does not enter calibration: a run with other bits keeps the Hessians and the layers it has.
TEST_F(TraceResumeTest, ARequestWithOtherBitsReusesWhatItCan) {
  trace("out.thmb", {"--keep-work"});
  std::map<std::string, ino_t> before = identities();
  trace("out.thmb", {"--keep-work", "--bits", "5,7"});
  std::map<std::string, ino_t> now = identities();
  for (const auto& [name, inode] : before) EXPECT_EQ(now.at(name), inode) << name;
  auto solutions = [](const std::map<std::string, ino_t>& files) {
    return std::ranges::count_if(files, [](const auto& file) { return file.first.starts_with("solution-"); });
  };
  EXPECT_EQ(solutions(now), solutions(before) + 10);  // the ten layers of high precision
  trace("direct.thmb", {"--bits", "5,7"});
  EXPECT_EQ(contents("out.thmb"), contents("direct.thmb"));
}

TEST_F(TraceResumeTest, AFailedRunKeepsItsWork) {
  std::string impossible = std::to_string(lowest_budget_tried());
  expect_failure(3, trace_arguments("out.thmb", {"--budget", impossible}), {"smallest artifact"});
  EXPECT_FALSE(results().empty());
  trace("out.thmb");
  expect_reference();
}

}  // namespace
}  // namespace thimble::testing::resume_test
