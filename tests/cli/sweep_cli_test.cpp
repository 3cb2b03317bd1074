// sweep_cli_test.cpp: `thimble sweep`: its points are those of quantize and eval, it resumes, and what it refuses; with
// `quantize --rate-bound` and the maps of `inspect`, which come from the same parts.
#include <fmt/format.h>
#include <signal.h>

#include <cmath>
#include <filesystem>
#include <numeric>

#include "quantizer/reports/gnuplot.h"
#include "tests/cli/cli_fixture.h"

namespace thimble::testing::sweep_cli_test {
namespace {

class SweepTest : public CliTest {
 protected:
  static Arguments quick() {
    return {"--min-elements", "100", "--calibration-sequences", "3", "--calibration-length", "32"};
  }
  static Arguments sweep_arguments(const Arguments& more, const std::string& prefix = "curve") {
    auto has = [&](const char* option) { return std::ranges::find(more, option) != more.end(); };
    const Arguments calibration =
        has("--hessians") ? without_option(quick(), "--calibration-sequences") : quick();  // the model writes none
    return Arguments{"sweep", "model.safetensors", "-o", prefix} + calibration + scoring() + more;
  }
  Json sweep(const Arguments& more) const { return succeed_json(sweep_arguments(more)); }
  Json kept(const std::string& name = "curve.json") const { return parse_json(Bytes(contents(name)), name); }
  // A method's point at a budget.
  static Json point(const Json& results, const std::string& method, uint64_t budget) {
    for (const Json& found : results.at("points"))
      if (found.at("method") == method && found.at("budget_bytes") == budget) return found;
    ADD_FAILURE() << "no " << method << " at " << budget << ": " << results.dump(1);
    return {};
  }
  static RunOptions without_gnuplot() {
    RunOptions options;
    options.environment = {"PATH=/nowhere"};
    return options;
  }

  static Json without_seconds(Json points) {
    for (Json& point : points) point.erase("seconds");
    return points;
  }
  std::string csv() const { return read_text_file(path("curve.csv"), 1 << 20); }
  // Scores in the work folder, by name.
  Arguments records() const {
    Arguments found;
    for (const auto& entry : std::filesystem::directory_iterator(path("curve.work")))
      if (entry.path().filename().string().starts_with("score-"))
        found.push_back("curve.work/" + entry.path().filename().string());
    std::sort(found.begin(), found.end());
    return found;
  }

  const Arguments two_budgets = {"--budgets", "22000,24000"};
  const Arguments slope_point = {"--budgets", "22000", "--methods", "slope"}, keep_work = {"--keep-work"};
};

TEST_F(SweepTest, PointsAreThoseOfQuantizeAndEval) {
  Json results = sweep(two_budgets + Arguments{"--keep-artifacts"});
  ASSERT_EQ(results.at("points").size(), 4);
  Json original = succeed_json(Arguments{"eval", "model.safetensors"} + scoring()).at("evaluations").at(0);
  EXPECT_EQ(results.at("original").at("bits_per_byte"), original.at("bits_per_byte"));
  EXPECT_EQ(results.at("original").at("file_bytes"), size("model.safetensors"));
  for (const char* method : {"slope", "trace"})
    for (const char* budget : {"22000", "24000"}) {
      SCOPED_TRACE(std::string(method) + " " + budget);
      const std::string artifact = std::string("curve-") + method + "-" + budget + ".thmb";
      succeed(Arguments{"quantize", "model.safetensors", "-o", "one.thmb", "--method", method, "--budget", budget} +
              quick());
      EXPECT_EQ(contents(artifact), contents("one.thmb"));
      Json found = point(results, method, std::stoull(budget));
      EXPECT_EQ(found.at("artifact_bytes"), size(artifact));
      EXPECT_LE(size(artifact), std::stoull(budget));
      double bits_per_byte =
          succeed_json(Arguments{"eval", artifact} + scoring()).at("evaluations").at(0).at("bits_per_byte");
      EXPECT_EQ(found.at("bits_per_byte"), bits_per_byte);
      EXPECT_EQ(found.at("gap_bits_per_byte").get<double>(),
                bits_per_byte - original.at("bits_per_byte").get<double>());
    }
  EXPECT_GT(point(results, "slope", 24000).at("artifact_bytes"), point(results, "slope", 22000).at("artifact_bytes"));
  EXPECT_LT(point(results, "slope", 24000).at("predicted_loss"), point(results, "slope", 22000).at("predicted_loss"));
}

TEST_F(SweepTest, WritesItsResultsAndNothingElse) {
  write("ref.csv", "label,bytes,bpb\nanother,15000,9.5\n");
  std::vector<std::string> before = names();
  RunResult result = succeed(sweep_arguments(two_budgets + Arguments{"--reference", "ref.csv"}), without_gnuplot());
  EXPECT_THAT(result.out, AllOf(HasSubstr("gnuplot is not installed"), HasSubstr("curve.gp"), HasSubstr("another")));
  Arguments expected = before + Arguments{"curve.csv", "curve.gp", "curve.json"};
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(names(), expected);
  const std::string lines = csv();
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 1 + 1 + 4 + 1);
  EXPECT_THAT(lines, AllOf(Not(HasSubstr("incomplete")), HasSubstr("\nslope,22000,"), HasSubstr("\ntrace,24000,"),
                           HasSubstr("\nanother,,15000,")));
  EXPECT_THAT(read_text_file(path("curve.gp"), 1 << 20), HasSubstr("title 'another'"));
  if (!has_gnuplot()) GTEST_SKIP() << "gnuplot is not installed";
  succeed(sweep_arguments(two_budgets));
  EXPECT_THAT(read_text_file(path("curve.svg"), 1 << 20), AllOf(HasSubstr("<svg"), HasSubstr("slope")));
  EXPECT_EQ(read_text_file(path("curve.png"), 1 << 20).substr(1, 3), "PNG");
}

TEST_F(SweepTest, FinishedPointsAreNotFoundAgain) {
  const Arguments more_budgets = two_budgets + keep_work;
  Json first = sweep(Arguments{"--budgets", "22000"} + keep_work);
  Json more = sweep(more_budgets);
  EXPECT_EQ(more.at("points").size(), 4);
  for (const char* method : {"slope", "trace"})  // measured times and all
    EXPECT_EQ(point(more, method, 22000), point(first, method, 22000));
  Json again = sweep(more_budgets);
  EXPECT_EQ(again.at("points"), more.at("points"));
  EXPECT_FALSE(again.at("seconds").contains("calibration"));

  // Options of one method are none of the other's business; the checkpoint, text and calibration are.
  Json bits = sweep(more_budgets + Arguments{"--bits", "4,5"});
  EXPECT_EQ(point(bits, "slope", 22000), point(first, "slope", 22000));
  EXPECT_NE(point(bits, "trace", 22000).at("seconds"), point(first, "trace", 22000).at("seconds"));
  Json seed = sweep(more_budgets + Arguments{"--bits", "4,5", "--seed", "1"});
  EXPECT_NE(point(seed, "slope", 22000).at("seconds"), point(first, "slope", 22000).at("seconds"));
  EXPECT_EQ(seed.at("original"), first.at("original"));
  Json fewer = sweep(more_budgets + Arguments{"--bits", "4,5", "--seed", "1", "--max-targets", "100"});
  EXPECT_NE(fewer.at("original"), first.at("original"));
  EXPECT_NE(point(fewer, "slope", 22000).at("bits_per_byte"), point(seed, "slope", 22000).at("bits_per_byte"));

  // Nothing of it stays once it is not to be kept; then all is measured anew.
  sweep(two_budgets);
  EXPECT_FALSE(exists("curve.work"));
  EXPECT_TRUE(sweep(slope_point).at("seconds").contains("calibration"));
}

TEST_F(SweepTest, ReportsAreNeverRead) {
  const Json first = sweep(slope_point + keep_work);
  Json forged = kept();
  EXPECT_EQ(forged.at("complete"), true);
  forged["points"][0]["bits_per_byte"] = 0.5;
  forged["original"]["bits_per_byte"] = 0.25;
  const std::vector<std::string> texts = {forged.dump(), "{\"points\":", "", "{\"mine\":1}"};
  for (size_t i = 0; i < texts.size(); ++i) {
    write("curve.json", texts[i]);
    // From what was kept; at last without it.
    const Json again = sweep(slope_point + (i + 1 < texts.size() ? keep_work : Arguments{"--work-dir", "empty"}));
    EXPECT_EQ(without_seconds(again.at("points")), without_seconds(first.at("points")));
    EXPECT_EQ(again.at("original"), first.at("original"));
    EXPECT_EQ(without_seconds(kept().at("points")), without_seconds(first.at("points")));
  }
}

TEST_F(SweepTest, DamagedScoresAreMeasuredAgain) {
  const Json first = sweep(slope_point + keep_work);
  Arguments files = records();
  std::erase_if(files, [&](const std::string& file) {  // a divergence
    const std::string text(as_text(contents(file)));
    return text.find("targets") == std::string::npos && text.find("slope") == std::string::npos;
  });
  ASSERT_EQ(files.size(), 2) << "the original and the point";
  auto expect_same_figures = [&] {
    const Json again = sweep(slope_point + keep_work);
    EXPECT_EQ(without_seconds(again.at("points")), without_seconds(first.at("points")));
    EXPECT_EQ(again.at("original"), first.at("original"));
  };
  for (const std::string& file : files) {
    const ByteVector whole = contents(file);
    // A bit of the last number, which leaves all else whole; the checksum differs.
    for (const ByteVector& damaged : {with_flipped_bit(whole, whole.size() - 2), without_end(whole, 3), ByteVector()}) {
      write(file, Bytes(damaged));
      expect_same_figures();
      EXPECT_NE(contents(file), damaged);
    }
  }
  // Whole files under other names: the one's score is not the other's, nor is another kind of result.
  const ByteVector of_first = contents(files[0]);
  write(files[1], Bytes(of_first));
  expect_same_figures();
  for (const auto& entry : std::filesystem::directory_iterator(path("curve.work")))
    if (entry.path().filename().string().starts_with("hessians-"))
      write(files[0], Bytes(contents("curve.work/" + entry.path().filename().string())));
  expect_same_figures();
}

TEST_F(SweepTest, AKilledSweepGoesOn) {
  RunOptions options;
  options.kill_when = [&] { return exists("curve.json") && !kept().at("points").empty(); };
  const Arguments budgets = {"--budgets", "13000,14000,15000,16000,17000,18000,19000,20000"};
  RunResult result = thimble(sweep_arguments(budgets), options);
  ASSERT_EQ(result.signal, SIGKILL) << result.err;
  Json before = kept();
  ASSERT_FALSE(before.at("points").empty());
  EXPECT_EQ(before.at("complete"), false);
  EXPECT_EQ(before.at("planned_points"), 16);
  EXPECT_THAT(csv(), HasSubstr("\nincomplete,,,,,,,"));
  Json after = sweep(budgets);
  EXPECT_EQ(after.at("points").size(), 16);
  for (const Json& found : before.at("points"))  // measured times and all
    EXPECT_EQ(point(after, found.at("method"), found.at("budget_bytes")), found);
  EXPECT_EQ(kept().at("complete"), true);
  EXPECT_THAT(csv(), Not(HasSubstr("incomplete")));
  EXPECT_FALSE(exists("curve.work"));
}

// A disk that has no room for the second artifact.
TEST_F(SweepTest, AReportOfASweepThatFailedSaysSo) {
  sweep(slope_point + keep_work);
  RunOptions small;
  small.limits = {{RLIMIT_FSIZE, 16384}};
  RunResult result = thimble(sweep_arguments(two_budgets + Arguments{"--methods", "slope"} + keep_work), small);
  EXPECT_EQ(result.exit_code, 5) << result.err;
  EXPECT_EQ(kept().at("complete"), false);
  EXPECT_EQ(kept().at("points").size(), 1);
  EXPECT_THAT(csv(), HasSubstr("\nincomplete,,,,,,,1 of 2 points done\n"));
}

TEST_F(SweepTest, KeptArtifactsAreThoseThatWereScored) {
  const Arguments arguments = slope_point + keep_work;
  Json first = sweep(arguments);
  Json again = sweep(arguments + Arguments{"--keep-artifacts"});
  const std::string name = "curve-slope-22000.thmb";
  const ByteVector artifact = contents(name);
  EXPECT_EQ(point(again, "slope", 22000).at("artifact_bytes"), artifact.size());
  EXPECT_EQ(without_seconds(again.at("points")), without_seconds(first.at("points")));
  EXPECT_EQ(sweep(arguments + Arguments{"--keep-artifacts"}).at("points"), again.at("points"));
  write(name, Bytes(with_flipped_bit(artifact, artifact.size() / 2)));
  sweep(arguments + Arguments{"--keep-artifacts"});
  EXPECT_EQ(contents(name), artifact);
}

TEST_F(SweepTest, GapsHaveStandardErrors) {
  write_long_tokens();
  Json results = succeed_json(Arguments{"sweep", "model.safetensors", "-o", "curve", "--keep-artifacts"} + quick() +
                              scoring("long.bin") + slope_point);
  const Json found = point(results, "slope", 22000);
  const Json evaluations =
      succeed_json(Arguments{"eval", "model.safetensors", "curve-slope-22000.thmb"} + scoring("long.bin"))
          .at("evaluations");
  EXPECT_EQ(found.at("gap_standard_error"), evaluations[1].at("gap_standard_error"));
  EXPECT_GT(found.at("gap_standard_error"), 0);
  EXPECT_THAT(csv(), HasSubstr(fmt::format(",{:.6f},\n", found.at("gap_standard_error").get<double>())));
  EXPECT_THAT(read_text_file(path("curve.gp"), 1 << 20), HasSubstr("with yerrorlines"));
}

TEST_F(SweepTest, BitsPerWeightAreBudgetsToo) {
  Json results = sweep({"--bits-per-weight", "8,6.5", "--methods", "slope"});
  ASSERT_EQ(results.at("points").size(), 2);
  const double parameters = results.at("parameters");
  EXPECT_EQ(results.at("points").at(0).at("budget_bytes"), std::floor(6.5 * parameters / 8));
  EXPECT_EQ(results.at("points").at(1).at("budget_bytes"), std::floor(8 * parameters / 8));
  EXPECT_LE(results.at("points").at(0).at("bits_per_weight"), 6.5);
}

TEST_F(SweepTest, ABudgetThatCannotBeMetIsAPointOfItsOwn) {
  Json results = sweep({"--budgets", "100,24000", "--methods", "trace,slope"});
  ASSERT_EQ(results.at("points").size(), 4);
  EXPECT_EQ(results.at("points").at(0).at("method"), "trace") << "in the order asked for";
  for (const char* method : {"slope", "trace"}) {
    EXPECT_THAT(point(results, method, 100).at("failure").get<std::string>(), HasSubstr("budget cannot be met"));
    EXPECT_FALSE(point(results, method, 24000).contains("failure"));
  }
  EXPECT_THAT(succeed(sweep_arguments({"--budgets", "100,24000"})).out,
              AllOf(HasSubstr("\nslope "), HasSubstr("  at 100 B: the budget cannot be met")));
  EXPECT_THAT(csv(), HasSubstr("\nslope,100,,,,,,\"the budget cannot be met"));
  EXPECT_THAT(kept().at("points").at(0).at("failure").get<std::string>(), HasSubstr("budget cannot be met"));
  expect_failure(3, sweep_arguments({"--budgets", "100,200"}, "none"), {"no budget can be met", "200 B"});
  EXPECT_EQ(kept("none.json").at("complete"), true);
  EXPECT_EQ(kept("none.json").at("points").size(), 4);
}

TEST_F(SweepTest, CommandLinesThatAreRefused) {
  expect_failure(2, sweep_arguments({"--methods", "slope,magic"}), {"magic", "slope, trace"});
  expect_failure(2, sweep_arguments({"--methods", "slope,slope"}), {"'slope' twice"});
  for (const char* budgets : {"1,", ",1", "1e-6", "0", "0x10", "-1", "1 2"})
    expect_failure(2, sweep_arguments({"--budgets", budgets}), {"--budgets"});
  for (const char* bits : {"3,", "0", "33", "nan", "three"})
    expect_failure(2, sweep_arguments({"--bits-per-weight", bits}), {"--bits-per-weight"});
  expect_failure(2, sweep_arguments({"--budgets", "1", "--bits-per-weight", "1"}), {"--budgets"});
  expect_failure(2, sweep_arguments({"--codec", "gzip"}), {"gzip"});
  expect_failure(2, sweep_arguments({"--trellis-bits", "1"}), {"--trellis-bits"});
  expect_failure(2, Arguments{"sweep", "model.safetensors", "-o", "curve", "--tokens", "val.bin"}, {"--tokenizer"});
  expect_failure(2, Arguments{"sweep", "model.safetensors"} + scoring(), {"--output"});
  expect_failure(2, sweep_arguments({}, "config"), {"replace", "config.json"});
  expect_failure(5, sweep_arguments({}, "missing/curve"), {"missing/curve.json"});
  EXPECT_FALSE(exists("curve.json"));
  EXPECT_FALSE(exists("curve.work"));
}

TEST_F(SweepTest, FilesThatAreRefused) {
  write("ref.csv", "a,1,1\nb,two,2\n");
  expect_failure(4, sweep_arguments({"--reference", "ref.csv"}), {"ref.csv: line 2"});
  expect_failure(5, sweep_arguments({"--reference", "no.csv"}), {"no.csv"});
  EXPECT_FALSE(exists("curve.work"));
}

TEST_F(SweepTest, PointsAreDistilledUnlessToldOtherwise) {
  const Arguments arguments = {"--budgets", "24000", "--methods", "slope,trace", "--keep-artifacts", "--keep-work"};
  Json tuned = sweep(arguments);
  auto steps = [&] {
    return succeed_json({"inspect", "curve-slope-24000.thmb"}).at("provenance").at("distill_steps").get<int64_t>();
  };
  EXPECT_TRUE(tuned.at("seconds").contains("distill"));
  EXPECT_GT(steps(), 0);
  // Its options are those of slope alone.
  Json plain = sweep(arguments + Arguments{"--distill-steps", "0"});
  EXPECT_FALSE(plain.at("seconds").contains("distill"));
  EXPECT_EQ(steps(), 0);
  EXPECT_NE(point(plain, "slope", 24000).at("seconds"), point(tuned, "slope", 24000).at("seconds"));
  EXPECT_EQ(point(plain, "trace", 24000), point(tuned, "trace", 24000));
}

TEST_F(SweepTest, TokensBesideHessiansAreForSlope) {
  succeed(Arguments{"quantize", "model.safetensors", "-o", "one.thmb", "--save-hessians", "h.safetensors",
                    "--save-calibration", "c.bin"} +
          quick());
  const Arguments given = {"--budgets", "24000", "--hessians", "h.safetensors", "--calibration-tokens", "c.bin"};
  EXPECT_TRUE(sweep(given + Arguments{"--methods", "slope,trace"}).at("seconds").contains("distill"));
  expect_failure(2, sweep_arguments(given + Arguments{"--methods", "trace"}, "other"), {"--hessians", "trace"});
}

TEST_F(SweepTest, RateBoundsAreReported) {
  Json report = succeed_json(Arguments{"quantize", "model.safetensors", "-o", "out.thmb", "--rate-bound", "--budget"} +
                             Arguments{"24000"} + quick());
  const Json& rate = report.at("rate");
  EXPECT_EQ(rate.at("loss_unit"), "nats per token");
  double loss = 0;
  for (const Json& matrix : rate.at("matrices")) {
    loss += matrix.at("predicted_loss").get<double>();
    EXPECT_GE(matrix.at("bound_bits_per_weight"), 0);
  }
  EXPECT_NEAR(rate.at("total").at("predicted_loss"), loss, 1e-12 * loss);
  for (const Json& layer : report.at("layers")) {
    EXPECT_EQ(layer.at("sensitivity"), layer.at("predicted_loss"));
    EXPECT_GT(layer.at("predicted_loss"), 0) << layer;
  }
  Json results = sweep({"--budgets", "24000", "--methods", "slope", "--rate-bound"});
  Json found = point(results, "slope", 24000);
  EXPECT_EQ(found.at("distance_bits_per_weight"), rate.at("total").at("distance_bits_per_weight"));
  EXPECT_EQ(found.at("predicted_loss"), rate.at("total").at("predicted_loss"));

  Json trace = succeed_json(Arguments{"quantize", "model.safetensors", "-o", "out.thmb", "--rate-bound", "--method"} +
                            Arguments{"trace"} + quick());
  EXPECT_EQ(trace.at("rate").at("loss_unit"), "half the squared error of outputs per token");
  EXPECT_THAT(
      succeed(Arguments{"quantize", "model.safetensors", "-o", "out.thmb", "--rate-bound", "--budget", "24000"} +
              quick())
          .out,
      AllOf(HasSubstr("distance"), HasSubstr("blocks.1.mlp.fc.weight"), HasSubstr("total")));
}

TEST_F(SweepTest, InspectMapsBitsAndLossesOverLayers) {
  Json report =
      succeed_json(Arguments{"quantize", "model.safetensors", "-o", "out.thmb", "--budget", "24000"} + quick());
  write("report.json", report.dump());
  Json inspected = succeed_json({"inspect", "out.thmb", "--report", "report.json"});
  const Json& map = inspected.at("heat_map");
  EXPECT_EQ(map.at("layers"), Json::parse("[0,1]"));
  EXPECT_THAT(map.at("kinds").get<Arguments>(), ::testing::Contains("attn.c_q"));
  double shares = 0;
  for (const Json& tensor : inspected.at("tensors")) {
    shares += tensor.value("loss_share", 0.0);
    if (tensor.at("name") != "blocks.1.attn.c_q.weight") continue;
    const auto row = std::ranges::find(map.at("kinds"), "attn.c_q") - map.at("kinds").begin();
    EXPECT_EQ(map.at("bits_per_weight").at(static_cast<size_t>(row)).at(1), tensor.at("bits_per_weight"));
  }
  EXPECT_NEAR(shares, 1, 1e-12);
  EXPECT_THAT(succeed({"inspect", "out.thmb"}).out,
              AllOf(HasSubstr("bits per weight by layer"), HasSubstr("01  mean"), Not(HasSubstr("share of"))));
  EXPECT_THAT(succeed({"inspect", "out.thmb", "--report", "report.json"}).out,
              AllOf(HasSubstr("loss share"), HasSubstr("share of the loss by layer")));

  report["artifact_bytes"] = size("out.thmb") + 1;
  write("report.json", report.dump());
  expect_failure(4, {"inspect", "out.thmb", "--report", "report.json"}, {"report.json", "report of an artifact"});
  expect_failure(5, {"inspect", "out.thmb", "--report", "no.json"}, {"no.json"});
}

TEST_F(SweepTest, InspectDrawsAHeatMap) {
  succeed(Arguments{"quantize", "model.safetensors", "-o", "out.thmb", "--budget", "24000"} + quick());
  expect_failure(2, {"inspect", "out.thmb", "--heat-map", "map.gif"}, {"--heat-map", ".svg or .png"});
  expect_failure(2, {"inspect", "out.thmb", "--heat-map", "out.thmb"}, {"replace"});
  expect_failure(5, {"inspect", "out.thmb", "--heat-map", "missing/map.svg"}, {"missing"});
  expect_failure(5, {"inspect", "out.thmb", "--heat-map", "map.png"}, {"gnuplot", "cannot be started"},
                 without_gnuplot());
  EXPECT_FALSE(exists("map.svg"));
  if (!has_gnuplot()) GTEST_SKIP() << "gnuplot is not installed";
  succeed({"inspect", "out.thmb", "--heat-map", "map.svg"});
  EXPECT_THAT(read_text_file(path("map.svg"), 1 << 20), AllOf(HasSubstr("<svg"), HasSubstr("attn.c_q")));
  succeed({"inspect", "out.thmb", "--heat-map", "map.png"});
  EXPECT_EQ(read_text_file(path("map.png"), 1 << 20).substr(1, 3), "PNG");
}

}  // namespace
}  // namespace thimble::testing::sweep_cli_test
