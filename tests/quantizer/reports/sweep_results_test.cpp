// sweep_results_test.cpp: results of a sweep as JSON, CSV, table and plot, what a killed sweep keeps, and reference
// points.
#include "quantizer/reports/sweep_results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "quantizer/methods/packed_values.h"
#include "quantizer/reports/gnuplot.h"
#include "runtime/base/error.h"
#include "tests/runtime/base/error_matcher.h"

namespace thimble::sweep_results_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

SweepResults sample() {
  SweepResults results;
  results.checkpoint = "a/model.pt";
  results.parameters = 1000;
  results.planned_points = 2;
  results.is_complete = true;
  results.original = {2000, 1.25, "all 10 targets, context 4, stride 2", {{1, 2}, {3, 4}}};
  SweepPoint met, failed;
  met.method = failed.method = "slope";
  met.budget_bytes = 500;
  met.artifact_bytes = 499;
  met.artifact_hash = ~uint64_t{0};
  met.bits_per_byte = 1.375;
  met.gap_standard_error = 0.0625;
  met.predicted_loss = 0.1;
  met.distance_bits_per_weight = -0.25;
  met.seconds = 1.5;
  failed.budget_bytes = 5;
  failed.failure = "it \"cannot\" be met, at 5 B";
  results.points = {met, failed};
  results.references = {{"int8", 1000, 1.3}};
  return results;
}

TEST(SweepResults, AsJson) {
  Json json = to_json(sample());
  EXPECT_EQ(json.at("complete"), true);
  EXPECT_EQ(json.at("planned_points"), 2);
  const Json& point = json.at("points").at(0);
  EXPECT_EQ(point.at("gap_bits_per_byte"), 0.125);
  EXPECT_EQ(point.at("gap_standard_error"), 0.0625);
  EXPECT_EQ(point.at("bits_per_weight"), 8 * 0.499);
  EXPECT_EQ(json.at("points").at(1).at("failure"), sample().points[1].failure);
  EXPECT_FALSE(json.at("points").at(1).contains("bits_per_byte"));
  SweepResults unknown = sample();
  unknown.points[0].gap_standard_error.reset();
  EXPECT_TRUE(to_json(unknown).at("points").at(0).at("gap_standard_error").is_null());
}

TEST(SweepResults, AsCsv) {
  const std::string text =
      "series,budget_bytes,artifact_bytes,bits_per_weight,bits_per_byte,gap_bits_per_byte,gap_standard_error,note\n"
      "original,,2000,16.000000,1.250000,0.000000,0.000000,\n"
      "slope,500,499,3.992000,1.375000,0.125000,0.062500,\n"
      "slope,5,,,,,,\"it \"\"cannot\"\" be met, at 5 B\"\n"
      "int8,,1000,8.000000,1.300000,0.050000,,\n";
  EXPECT_EQ(to_csv(sample()), text);
  SweepResults killed = sample();
  killed.is_complete = false;
  killed.planned_points = 9;
  EXPECT_EQ(to_csv(killed), text + "incomplete,,,,,,,2 of 9 points done\n");
  killed.points.clear();
  killed.planned_points = 1;
  EXPECT_THAT(to_csv(killed), HasSubstr("\nincomplete,,,,,,,0 of 1 point done\n"));
}

TEST(SweepResults, ABudgetThatIsNotFilledHasItsReason) {
  SweepResults results = sample();
  results.points[0].artifact_bytes = 400;
  results.points[0].fill_reason = "it has no knob";
  const Json point = to_json(results).at("points").at(0);
  EXPECT_EQ(point.at("fill"), 0.8);
  EXPECT_EQ(point.at("fill_reason"), "it has no knob");
  EXPECT_FALSE(to_json(sample()).at("points").at(0).contains("fill_reason"));
  EXPECT_THAT(to_csv(results), HasSubstr(",0.062500,it has no knob\n"));
  EXPECT_THAT(to_text(results), HasSubstr("slope at 500 B: 80.00 % used; it has no knob\n"));
  EXPECT_EQ(unpack<SweepPoint>(pack(results.points[0])).fill_reason, "it has no knob");
}

TEST(SweepResults, AsATable) {
  EXPECT_THAT(to_text(sample()),
              AllOf(HasSubstr("+0.125000  0.062500"), HasSubstr("all 10 targets"), HasSubstr("int8"),
                    HasSubstr("  at 5 B: it \"cannot\" be met, at 5 B\n"), Not(HasSubstr("incomplete"))));
  SweepResults killed = sample();
  killed.is_complete = false;
  killed.notes = {std::nullopt, "something else"};
  EXPECT_THAT(to_text(killed), AllOf(HasSubstr("incomplete: 2 of 2 points"), HasSubstr("note: something else\n")));
}

std::string sweep_script(const SweepResults& results, const std::string& name) {
  return chart_script(sweep_chart(results), "model.pt", {name + ".svg", name + ".png"});
}

TEST(SweepResults, AsAPlot) {
  std::string script = sweep_script(sample(), "it's");
  EXPECT_THAT(script, AllOf(HasSubstr("\n0.499000 1.375000 0.062500\n"), HasSubstr("title 'slope'"),
                            HasSubstr("title 'int8'"), HasSubstr("title 'original'"), HasSubstr("with yerrorlines"),
                            HasSubstr("bars: standard error"), HasSubstr("\n1.000000 1.300000\n")));
  EXPECT_THAT(script, AllOf(HasSubstr("set output 'it''s.svg'"), HasSubstr("set output 'it''s.png'"), HasSubstr("kB"),
                            Not(HasSubstr("a/model"))));
  SweepResults large = sample();
  large.points[0].artifact_bytes = 16'000'000;
  large.points[0].gap_standard_error.reset();
  large.original.reset();
  EXPECT_THAT(sweep_script(large, "x"), AllOf(HasSubstr("\n16.000000 1.375000\n"), HasSubstr("MB"),
                                              Not(HasSubstr("original")), Not(HasSubstr("error"))));
}

TEST(SweepScores, SurviveAKillExactly) {
  SweepPoint met = sample().points[0];
  met.bits_per_byte = 1.0 / 3;
  met.predicted_loss.reset();
  const SweepPoint back = unpack<SweepPoint>(pack(met));
  EXPECT_EQ(pack(back), pack(met));
  EXPECT_EQ(back.bits_per_byte, 1.0 / 3);
  EXPECT_EQ(back.artifact_hash, ~uint64_t{0});
  EXPECT_FALSE(back.predicted_loss);
  EXPECT_EQ(unpack<SweepPoint>(pack(sample().points[1])).failure, sample().points[1].failure);
  const OriginalScore original = unpack<OriginalScore>(pack(*sample().original));
  EXPECT_EQ(original.blocks, sample().original->blocks);
  EXPECT_EQ(pack(original), pack(*sample().original));
}

TEST(SweepScores, AreNotTakenForEachOther) {
  EXPECT_THROW(unpack<SweepPoint>(pack(*sample().original)), FormatError);
  EXPECT_THROW(unpack<OriginalScore>(pack(sample().points[0])), FormatError);
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
}  // namespace thimble::sweep_results_test
