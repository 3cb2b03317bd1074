// ranks_cli_test.cpp: the program as several MPI processes: the results of one, one voice, and an end for all when one
// of them fails or dies.
#include "tests/cli/cli_fixture.h"

namespace thimble::testing::ranks_cli_test {
namespace {

class RanksTest : public CliTest {
 protected:
  void SetUp() override {
    if (mpirun_program().empty()) GTEST_SKIP() << "no MPI in this build";
  }

  // For Open MPI: as root, with more ranks than processors, without other machines; and the leaks that a sanitizer
  // would find are its own.
  static RunOptions mpi_options(const std::string& folder) {
    RunOptions options;
    options.folder = folder;
    options.environment = {"OMPI_ALLOW_RUN_AS_ROOT=1",
                           "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                           "OMPI_MCA_rmaps_base_oversubscribe=1",
                           "OMPI_MCA_hwloc_base_binding_policy=none",
                           "OMPI_MCA_plm=isolated",
                           "OMPI_MCA_btl=self,vader",
                           "OMPI_MCA_btl_vader_single_copy_mechanism=none",
                           "LSAN_OPTIONS=detect_leaks=0"};
    return options;
  }
  RunResult mpirun(const Arguments& arguments) const {
    return run_program(Arguments{mpirun_program()} + arguments, mpi_options(path("")));
  }
  // `arguments` begin with the command; all ranks get them.
  RunResult ranks(int count, const Arguments& arguments) const {
    return mpirun(Arguments{"-np", std::to_string(count), thimble_program()} + arguments);
  }
  Json ranks_json(int count, const Arguments& arguments) const {
    RunResult result = ranks(count, arguments + Arguments{"--json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_TRUE(Json::accept(result.out)) << "one document, of rank 0: " << result.out;
    return Json::parse(result.out, nullptr, false);
  }
  // One command for rank 0 and another for rank 1.
  RunResult two_ranks(const Arguments& first, const Arguments& second) const {
    return mpirun(Arguments{"-np", "1"} + first + Arguments{":", "-np", "1"} + second);
  }
  // One process, two and three write the same artifact and report the same losses.
  void expect_the_very_bytes(const std::function<Arguments(const std::string& output)>& arguments_of) const {
    const Json expected = succeed_json(arguments_of("one.thmb"));
    for (int count : {2, 3}) {
      SCOPED_TRACE(std::to_string(count) + " ranks");
      const Json found = ranks_json(count, arguments_of("out.thmb"));
      EXPECT_EQ(contents("out.thmb"), contents("one.thmb"));
      EXPECT_EQ(found.at("layers"), expected.at("layers"));
      for (const char* when : {"before", "after"})
        EXPECT_EQ(found.at("evaluation").at(when).at("loss_nats"), expected.at("evaluation").at(when).at("loss_nats"));
      EXPECT_FALSE(exists("out.thmb.work"));
      std::filesystem::remove(path("out.thmb"));
    }
  }
  static Arguments program(const Arguments& arguments) { return Arguments{thimble_program()} + arguments; }
  static Arguments eval(const std::string& model = "model.safetensors") { return Arguments{"eval", model} + scoring(); }
};

TEST_F(RanksTest, EvalGivesTheVeryScores) {
  Json expected = succeed_json(eval()).at("evaluations").at(0);
  for (int count : {2, 3}) {
    Json report = ranks_json(count, eval());
    EXPECT_THAT(report.at("device").get<std::string>(), HasSubstr(std::to_string(count) + " ranks of cpu"));
    EXPECT_EQ(without_times(report.at("evaluations").at(0)), without_times(expected));
  }
}

// The search asks for solutions more than once.
TEST_F(RanksTest, QuantizeGivesTheVeryBytes) {
  expect_the_very_bytes([](const std::string& output) {
    return quantize_arguments(output, Arguments{"--budget", "20000"} + scoring());
  });
}

// Everything as a user has it who names nothing but a budget, on a calibration that ends soon.
TEST_F(RanksTest, QuantizeByDefaultGivesTheVeryBytes) {
  expect_the_very_bytes([](const std::string& output) {
    return Arguments{"quantize", "model.safetensors",    "-o", output, "--budget", "24000", "--min-elements",
                     "100",      "--calibration-length", "32"} +
           scoring();
  });
}

// Cross terms of more sequences than parts, and codes that learn in steps of more sequences than parts.
TEST_F(RanksTest, QuantizeThatLearnsGivesTheVeryBytes) {
  expect_the_very_bytes([](const std::string& output) {
    return quantize_arguments(output, Arguments{"--budget", "24000", "--calibration-sequences", "13",
                                                "--calibration-length", "32", "--learn-steps", "6"} +
                                          scoring());
  });
}

TEST_F(RanksTest, QuantizeByTraceGivesTheVeryBytes) {
  trace("some.thmb", {"--high", "5"});  // some layers of high precision fit
  const std::string budget = std::to_string(size("some.thmb"));
  expect_the_very_bytes([&](const std::string& output) {
    return trace_arguments(output, Arguments{"--budget", budget} + scoring());
  });
}

TEST_F(RanksTest, ARunResumesWithAnotherNumberOfRanks) {
  quantize("one.thmb");
  EXPECT_EQ(ranks(2, quantize_arguments("out.thmb", {"--keep-work"})).exit_code, 0);
  EXPECT_EQ(contents("out.thmb"), contents("one.thmb"));
  EXPECT_TRUE(exists("out.thmb.work"));
  quantize("out.thmb", {"--bits-per-weight", "5", "--keep-work"});
  EXPECT_EQ(ranks(3, quantize_arguments("out.thmb", {"--bits-per-weight", "4"})).exit_code, 0);
  quantize("one.thmb", {"--bits-per-weight", "4"});
  EXPECT_EQ(contents("out.thmb"), contents("one.thmb"));
}

TEST_F(RanksTest, LayersThatTraceHasSolvedAreTakenByAnotherNumberOfRanks) {
  EXPECT_EQ(ranks(2, trace_arguments("out.thmb", {"--keep-work"})).exit_code, 0);
  trace("out.thmb", {"--bits", "5,7", "--keep-work"});
  EXPECT_EQ(ranks(3, trace_arguments("out.thmb", {"--bits", "5,7"})).exit_code, 0);
  trace("one.thmb", {"--bits", "5,7"});
  EXPECT_EQ(contents("out.thmb"), contents("one.thmb"));
}

TEST_F(RanksTest, HessiansFromAFile) {
  quantize("one.thmb", {"--save-hessians", "h.safetensors"});
  EXPECT_EQ(ranks(3, quantize_arguments("out.thmb", {"--hessians", "h.safetensors"})).exit_code, 0);
  quantize("one.thmb", {"--hessians", "h.safetensors"});
  EXPECT_EQ(contents("out.thmb"), contents("one.thmb"));
}

// Also with a budget that cannot be met, which all ranks must learn of.
TEST_F(RanksTest, SweepGivesTheVeryPoints) {
  auto arguments = [](const std::string& output) {
    return Arguments{"sweep",     "model.safetensors", "-o",  output,       "--budgets",
                     "100,24000", "--min-elements",    "100", "--keep-work"} +
           Arguments{"--calibration-sequences", "3", "--calibration-length", "32"} + scoring("long.bin");
  };
  write_long_tokens();
  auto without_seconds = [](Json points) {
    for (Json& point : points) point.erase("seconds");
    return points;
  };
  Json expected = succeed_json(arguments("one"));
  Json found = ranks_json(2, arguments("out"));
  EXPECT_EQ(found.at("points").size(), 4);
  EXPECT_EQ(without_seconds(found.at("points")), without_seconds(expected.at("points")));
  EXPECT_EQ(found.at("original"), expected.at("original"));
  EXPECT_EQ(ranks_json(3, arguments("one")).at("points"), expected.at("points")) << "none of them found again";
}

TEST_F(RanksTest, OtherCommandsSpeakOnce) {
  EXPECT_EQ(ranks(2, {"--version"}).out, succeed({"--version"}).out);
  EXPECT_EQ(ranks(2, {"eval", "--help"}).out, succeed({"eval", "--help"}).out);
  EXPECT_THAT(ranks_json(2, {"doctor"}).at("mpi").get<std::string>(), Not(IsEmpty()));
}

TEST_F(RanksTest, AnErrorOfAllIsReportedAndEndsAll) {
  RunResult result = ranks(2, Arguments{"eval", "missing.thmb"} + scoring());
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_THAT(result.err, HasSubstr("thimble: missing.thmb: "));
  EXPECT_EQ(result.out, "");
  result = ranks(2, {"doctor", "--frobnicate"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("--frobnicate"));
  result = ranks(2, trace_arguments("out.thmb", {"--budget", std::to_string(lowest_budget_tried())}));
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("thimble: the budget cannot be met: the smallest artifact"));
}

TEST_F(RanksTest, AnErrorOfOneEndsAll) {
  RunResult result = two_ranks(program(eval()), program(Arguments{"eval", "missing.thmb"} + scoring()));
  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_THAT(result.err, HasSubstr("thimble: rank 1 of 2: missing.thmb: "));
}

TEST_F(RanksTest, RanksThatReadOtherFilesAreRefused) {
  write_torch_file(path("other.pt"), tiny_weights(2));
  RunResult result = two_ranks(program(eval()), program(eval("other.pt")));
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, AllOf(HasSubstr("rank 1 of 2: other.pt: the hash"), HasSubstr("ranks must agree")));
  result = two_ranks(program(quantize_arguments("out.thmb")), program(quantize_arguments("out.thmb", {}, "other.pt")));
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_FALSE(exists("out.thmb"));
}

TEST_F(RanksTest, ARankOfAnotherArithmeticIsRefused) {
  if (succeed_json({"doctor"}).at("instruction_set") == "portable") GTEST_SKIP() << "only one instruction set here";
  RunResult result = two_ranks(program(eval()), Arguments{"env", "THIMBLE_ISA=portable"} + program(eval()));
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, HasSubstr("the arithmetic is portable"));
}

TEST_F(RanksTest, ARankThatIsKilledEndsAll) {
  // Calibration would take hours; rank 1 is killed in the middle of it, when rank 0 has made the work folder.
  Arguments endless = {"quantize", "model.safetensors", "-o", "out.thmb", "--calibration-sequences", "1000000"};
  std::string kill_me = "pid=$$; (while [ ! -d out.thmb.work ]; do sleep 0.01; done; kill -9 $pid) & exec \"$@\"";
  RunResult result = two_ranks(program(endless), Arguments{"sh", "-c", kill_me, "sh"} + program(endless));
  EXPECT_FALSE(result.timed_out);
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("rank 1"));
  EXPECT_FALSE(exists("out.thmb"));
}

// Of several processes that know nothing of each other, each would write the output.
TEST(NoRanks, ABuildWithoutMpiRefusesToBeOneOfSeveral) {
  if (!mpirun_program().empty()) GTEST_SKIP() << "this build has MPI";
  RunOptions options;
  options.environment = {"OMPI_COMM_WORLD_SIZE=2"};
  RunResult result = run_program({thimble_program(), "doctor"}, options);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("no MPI"));
  options.environment = {"OMPI_COMM_WORLD_SIZE=1"};
  EXPECT_EQ(run_program({thimble_program(), "doctor"}, options).exit_code, 0);
}

}  // namespace
}  // namespace thimble::testing::ranks_cli_test
