// report_cli_test.cpp: --report of quantize and sweep: what is written where, what the page and the JSON know of the
// run, and that a page which cannot be written costs nothing else. How pages look is for
// tests/python/report_browser_test.py.
#include <sys/resource.h>

#include "tests/cli/cli_fixture.h"

namespace thimble::testing::report_cli_test {
namespace {

class ReportTest : public CliTest {
 protected:
  static Arguments quick() {
    return {"--min-elements",       "100", "--calibration-sequences", "3",
            "--calibration-length", "32",  "--trellis-bits",          "2"};
  }
  static Arguments slope_arguments(const Arguments& more) {
    return Arguments{"quantize", "model.safetensors", "-o", "out.thmb", "--budget", "20000"} + quick() + more;
  }
  std::string page(const std::string& name = "page.html") const { return read_text_file(path(name), 1 << 24); }
};

TEST_F(ReportTest, OfQuantizeIsWrittenBesideTheSameArtifact) {
  succeed(slope_arguments({}));
  const ByteVector artifact = contents("out.thmb");
  const RunResult result = succeed(slope_arguments(Arguments{"--report", "page.html"} + scoring()));
  EXPECT_EQ(contents("out.thmb"), artifact);
  EXPECT_THAT(result.out, HasSubstr("out.thmb, page.html"));
  EXPECT_EQ(names(), (Arguments{"config.json", "model.safetensors", "out.thmb", "page.html", "sp.model", "text.txt",
                                "val.bin"}));
  const std::string html = page();
  for (const char* words :
       {"model.safetensors", "20,000 B", "blocks.<wbr/>1.<wbr/>mlp.<wbr/>fc.<wbr/>weight", "Where the loss is",
        "The search for the step", "Bytes against bits per byte", "class=\"heat-map\"", "Peak memory", "evaluation",
        "calibration, sequences", "--calibration-length"})
    EXPECT_THAT(html, HasSubstr(words)) << words;
}

TEST_F(ReportTest, OfOtherMethodsHasLossesTooButNoStep) {
  for (const char* method : {"trace", "nvfp4"}) {
    SCOPED_TRACE(method);
    succeed({"quantize", "model.safetensors", "-o", "out.thmb", "--method", method, "--min-elements", "100",
             "--calibration-sequences", "3", "--calibration-length", "32", "--report", "page.html"});
    EXPECT_THAT(page(), AllOf(HasSubstr("Where the loss is"), HasSubstr(method), Not(HasSubstr("log2 of the step")),
                              Not(HasSubstr("bits per byte"))));
  }
}

TEST_F(ReportTest, OfSweepHasTheCurveAndEachArtifact) {
  write("ref.csv", "label,bytes,bpb\n<another>,15000,9.5\n");
  const Arguments sweep = Arguments{"sweep", "model.safetensors", "-o", "curve", "--methods", "slope"} + quick() +
                          scoring() + Arguments{"--reference", "ref.csv", "--report", "page.html"};
  const Json json = succeed_json(sweep + Arguments{"--budgets", "100,20000,24000"});
  EXPECT_THAT(json.at("files").get<Arguments>(), ::testing::Contains("page.html"));
  EXPECT_THAT(page(), AllOf(HasSubstr("class=\"chart wide\""), HasSubstr("20,000 B"), HasSubstr("24,000 B"),
                            HasSubstr("&lt;another&gt;"), HasSubstr("the budget cannot be met"),
                            HasSubstr("class=\"heat-map\""), HasSubstr("Where the loss is"), HasSubstr("Method slope"),
                            HasSubstr("calibration, seed")));
}

TEST_F(ReportTest, MemoryIsKnownForEveryStage) {
  const Json json = succeed_json(slope_arguments({}));
  const Json &seconds = json.at("seconds"), &bytes = json.at("stage_peak_memory_bytes");
  ASSERT_EQ(bytes.size(), seconds.size());
  for (const auto& [stage, peak] : bytes.items()) {
    EXPECT_TRUE(seconds.contains(stage)) << stage;
    EXPECT_GT(peak, 0) << stage;
    EXPECT_LE(peak, json.at("peak_memory_bytes")) << stage;
  }
}

TEST_F(ReportTest, APlaceThatCannotBeIsRefusedBeforeAnyWork) {
  expect_failure(2, slope_arguments({"--report", "model.safetensors"}), {"model.safetensors", "replace"});
  expect_failure(5, slope_arguments({"--report", "nowhere/page.html"}), {"nowhere/page.html", "No such file"});
  EXPECT_FALSE(exists("out.thmb"));
}

TEST_F(ReportTest, APageThatCannotBeWrittenCostsNothingElse) {
  RunOptions small_files;
  small_files.limits = {{RLIMIT_FSIZE, 24'000}};  // between artifact and page
  const RunResult result = thimble(slope_arguments({"--report", "page.html", "--no-resume"}), small_files);
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_THAT(result.err, HasSubstr("page.html: "));
  EXPECT_THAT(result.out, AllOf(HasSubstr("artifact"), HasSubstr("out.thmb"), Not(HasSubstr("page.html"))));
  EXPECT_FALSE(exists("page.html"));
  succeed({"verify", "out.thmb"});
}

}  // namespace
}  // namespace thimble::testing::report_cli_test
