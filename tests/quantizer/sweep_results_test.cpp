// sweep_results_test.cpp: results of a sweep to JSON and back, the CSV, and reference points from a file.
#include "quantizer/sweep_results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "quantizer/sweep_plot.h"
#include "tests/runtime/error_matcher.h"

namespace thimble {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

SweepResults sample() {
  SweepResults results;
  results.checkpoint = "a/model.pt";
  results.parameters = 1000;
  results.keys = {{"slope", "0123"}, {"original", "4567"}};
  results.original = {2000, 1.25, "all 10 targets, context 4, stride 2"};
  SweepPoint met, failed;
  met.method = failed.method = "slope";
  met.budget_bytes = 500;
  met.artifact_bytes = 499;
  met.bits_per_byte = 1.375;
  met.predicted_loss = 0.1;
  met.distance_bits_per_weight = -0.25;
  met.seconds = 1.5;
  failed.budget_bytes = 5;
  failed.failure = "it cannot be met";
  results.points = {met, failed};
  results.references = {{"int8", 1000, 1.3}};
  return results;
}

SweepResults parse(const Json& json) { return parse_sweep_results(as_bytes_of(json.dump()), "c.json"); }

TEST(SweepResults, SurviveJson) {
  SweepResults back = parse(to_json(sample()));
  EXPECT_TRUE(back.references.empty());  // these are read anew each time
  back.references = sample().references;
  EXPECT_EQ(to_json(back), to_json(sample()));
  EXPECT_EQ(back.find("slope", 500)->artifact_bytes, 499);
  EXPECT_EQ(back.find("slope", 5)->failure, "it cannot be met");
  EXPECT_EQ(back.find("trace", 500), nullptr);
  EXPECT_EQ(back.find("slope", 501), nullptr);
  Json point = to_json(sample()).at("points").at(0);
  EXPECT_EQ(point.at("gap_bits_per_byte"), 0.125);
  EXPECT_EQ(point.at("bits_per_weight"), 8 * 0.499);
}

TEST(SweepResults, OtherFilesAreRefused) {
  for (const char* text : {"", "{", "[]", "{}", "3", R"({"kind":"else"})", R"({"kind":7})"})
    EXPECT_THAT(bad_input_message([&] { parse_sweep_results(as_bytes_of(text), "c.json"); }), HasSubstr("c.json: "));
  auto expect_refusal = [](const char* pointer, const Json& value, const std::string& word) {
    Json json = to_json(sample());
    json[Json::json_pointer(pointer)] = value;
    EXPECT_THAT(bad_input_message([&] { parse(json); }), AllOf(HasSubstr("c.json: "), HasSubstr(word))) << pointer;
  };
  expect_refusal("/parameters", -1, "'parameters' of the sweep is -1");
  expect_refusal("/keys/slope", 3, "'slope' of 'keys'");
  expect_refusal("/keys", 3, "'keys'");
  expect_refusal("/points", 3, "'points'");
  expect_refusal("/points/0", 3, "a point has no member 'method'");
  expect_refusal("/points/0/artifact_bytes", 1.5, "'artifact_bytes'");
  expect_refusal("/points/0/bits_per_byte", "low", "'bits_per_byte'");
  expect_refusal("/points/0/predicted_loss", Json(), "'predicted_loss'");
  expect_refusal("/points/1/failure", 3, "'failure'");
  expect_refusal("/original/scored", 3, "'scored' of 'original'");
  expect_refusal("/original", "high", "'original'");
}

TEST(SweepResults, AsCsv) {
  EXPECT_EQ(to_csv(sample()),
            "series,budget_bytes,artifact_bytes,bits_per_weight,bits_per_byte,gap_bits_per_byte\n"
            "original,,2000,16.000000,1.250000,0.000000\n"
            "slope,500,499,3.992000,1.375000,0.125000\n"
            "int8,,1000,8.000000,1.300000,0.050000\n");
}

TEST(SweepResults, AsATable) {
  EXPECT_THAT(to_text(sample()), AllOf(HasSubstr("+0.125000"), HasSubstr("all 10 targets"), HasSubstr("int8"),
                                       HasSubstr("slope at 5 B: it cannot be met")));
}

TEST(SweepResults, AsAPlot) {
  std::string script = sweep_script(sample(), "it's");
  EXPECT_THAT(script, AllOf(HasSubstr("\n0.499000 1.375000\n"), HasSubstr("title 'slope'"), HasSubstr("title 'int8'"),
                            HasSubstr("title 'original'"), HasSubstr("set output 'it''s.svg'"),
                            HasSubstr("set output 'it''s.png'"), HasSubstr("kB"), Not(HasSubstr("a/model"))));
  SweepResults large = sample();
  large.points[0].artifact_bytes = 16'000'000;
  large.original.reset();
  EXPECT_THAT(sweep_script(large, "x"),
              AllOf(HasSubstr("\n16.000000 1.375000\n"), HasSubstr("MB"), Not(HasSubstr("original"))));
}

std::vector<ReferencePoint> references(std::string_view text) {
  return parse_reference_points(as_bytes_of(text), "ref.csv");
}

TEST(ReferencePoints, AreLinesOfLabelBytesAndBpb) {
  for (const char* text : {"label,bytes,bpb\r\nthe seed,11149629,1.2876\r\n\r\nint6 (é),12,3e-1",
                           "the seed,11149629,1.2876\nint6 (é),12,.3\n"}) {
    std::vector<ReferencePoint> points = references(text);
    ASSERT_EQ(points.size(), 2);
    EXPECT_EQ(points[0].label, "the seed");
    EXPECT_EQ(points[0].bytes, 11149629);
    EXPECT_EQ(points[0].bits_per_byte, 1.2876);
    EXPECT_EQ(points[1].label, "int6 (é)");
    EXPECT_EQ(points[1].bits_per_byte, 0.3);
  }
  EXPECT_TRUE(references("").empty());
  EXPECT_TRUE(references("label,bytes,bpb\n").empty());
}

TEST(ReferencePoints, OtherLinesAreNamed) {
  for (const std::string line :
       {"a", "a,1", "a,1,1,1", ",1,1", "a,,1", "a,1,", "a,-1,1", "a,0,1", "a,1.5,1", "a,1,x", "a,1,nan", "a,1,inf",
        "\"a\",1,1", "a\tb,1,1", "a, 1,1", "label,bytes,bpb", "a,99999999999999999999,1"})
    EXPECT_THAT(bad_input_message([&] { references("ok,1,1\n" + line + "\n"); }),
                AllOf(HasSubstr("ref.csv: line 2"), HasSubstr("label,bytes,bpb")))
        << line;
  EXPECT_THAT(bad_input_message([&] { references(std::string(65, 'a') + ",1,1"); }), HasSubstr("64 bytes"));
  EXPECT_EQ(references(std::string(64, 'a') + ",1,1").size(), 1);
}

}  // namespace
}  // namespace thimble
