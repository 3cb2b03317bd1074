// numerics_cli_test.cpp: `thimble numerics` as a user runs it.
#include <set>

#include "tests/cli/cli_fixture.h"

namespace thimble::testing::numerics_cli_test {
namespace {

using NumericsCliTest = CliTest;
const Arguments kSmall = {"numerics", "--device", "cpu", "--max-elements", "20000"};

TEST_F(NumericsCliTest, ChecksEveryOperator) {
  Json report = succeed_json(kSmall);
  EXPECT_EQ(report.at("passed"), true);
  std::set<std::string> operators;
  for (const Json& row : report.at("rows")) {
    operators.insert(row.at("operator"));
    EXPECT_EQ(row.at("nan_count"), 0);
    EXPECT_LE(row.at("share_of_bound").get<double>(), 1);
    EXPECT_FALSE(row.contains("seconds"));
  }
  EXPECT_EQ(operators.size(), 7);
}

TEST_F(NumericsCliTest, ChecksTheOperatorsAskedFor) {
  RunResult result = succeed(kSmall + Arguments{"--op", "softmax", "--op", "rms_norm"});
  EXPECT_THAT(result.out, AllOf(HasSubstr("softmax"), HasSubstr("rms_norm"), HasSubstr("ok"), HasSubstr("on cpu (")));
  EXPECT_THAT(result.out, AllOf(Not(HasSubstr("gelu")), Not(HasSubstr("FAIL"))));
}

TEST_F(NumericsCliTest, SeedsDecideTheInputs) {
  Arguments softmax = kSmall + Arguments{"--op", "softmax"};
  Json first = succeed_json(softmax);
  EXPECT_EQ(succeed_json(softmax + Arguments{"--threads", "1"}), first);
  EXPECT_NE(succeed_json(softmax + Arguments{"--seed", "1"}), first);
}

TEST_F(NumericsCliTest, UsageErrors) {
  expect_failure(2, {"numerics", "--op", "relu"}, {"--op", "relu", "softmax", "cross_entropy"});
  expect_failure(2, {"numerics", "--max-elements", "5"}, {"--max-elements", "231"});
}

}  // namespace
}  // namespace thimble::testing::numerics_cli_test
