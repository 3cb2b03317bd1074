// report_tensors_test.cpp: a report of quantize is read, and whatever is not one, or another artifact's, is refused.
#include "quantizer/reports/report_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/base/json.h"
#include "tests/runtime/base/error_matcher.h"

namespace thimble::report_tensors_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

ArtifactSummary artifact() {
  ArtifactSummary summary;
  summary.file_bytes = 1234;
  for (const char* name : {"a.weight", "b.weight"}) summary.tensors.emplace_back().name = name;
  return summary;
}

Json report() {
  return {{"artifact_bytes", 1234u},
          {"rate",
           {{"matrices",
             {{{"name", "a.weight"}, {"predicted_loss", 0.5}, {"distance_bits_per_weight", -0.25}},
              {{"name", "b.weight"}, {"predicted_loss", 0}}}}}}};
}

auto read(const std::string& text) { return read_quantize_report(as_bytes_of(text), "r.json", artifact()); }

TEST(ReportTensors, HasLossesAndDistances) {
  auto found = read(report().dump());
  ASSERT_EQ(found.size(), 2);
  EXPECT_EQ(found.at("a.weight").predicted_loss, 0.5);
  EXPECT_EQ(found.at("a.weight").distance_bits_per_weight, -0.25);
  EXPECT_EQ(found.at("b.weight").predicted_loss, 0);
  EXPECT_FALSE(found.at("b.weight").distance_bits_per_weight.has_value());
}

TEST(ReportTensors, OfAnotherArtifactOrOfNoneIsRefused) {
  for (const char* text : {"", "{", "[]", "{}", "null"})
    EXPECT_THAT(bad_input_message([&] { read(text); }), HasSubstr("r.json: ")) << text;
  auto expect_refusal = [](const char* pointer, const Json& value, const std::string& words) {
    Json json = report();
    json[Json::json_pointer(pointer)] = value;
    EXPECT_THAT(bad_input_message([&] { read(json.dump()); }), AllOf(HasSubstr("r.json: "), HasSubstr(words)))
        << pointer;
  };
  expect_refusal("/artifact_bytes", 1235u, "an artifact of 1235 B, this one has 1234 B");
  expect_refusal("/artifact_bytes", "many", "'artifact_bytes'");
  expect_refusal("/rate", 3, "'rate' has no member 'matrices'");
  expect_refusal("/rate/matrices", 3, "'matrices' of 'rate' is 3, must be a list");
  expect_refusal("/rate/matrices/0", 3, "a matrix of 'rate' has no member 'name'");
  expect_refusal("/rate/matrices/0/name", "c.weight", "'c.weight' is no tensor of this artifact");
  expect_refusal("/rate/matrices/0/predicted_loss", "low", "'predicted_loss' of matrix 'a.weight' is \"low\"");
  expect_refusal("/rate/matrices/0/predicted_loss", -1, "must be at least 0");
  expect_refusal("/rate/matrices/0/distance_bits_per_weight", Json(), "'distance_bits_per_weight'");
  Json without = report();
  without.erase("rate");
  EXPECT_THAT(bad_input_message([&] { read(without.dump()); }), HasSubstr("no member 'rate'"));
}

}  // namespace
}  // namespace thimble::report_tensors_test
