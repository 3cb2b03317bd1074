// numerics_report_test.cpp: the checks of `thimble numerics` pass for the operators, and fail for operators that are
// wrong in one element.
#include "quantizer/reports/numerics_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "runtime/base/error.h"

namespace thimble::numerics_report_test {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSmallest = 24'600;  // leaves out what takes long

NumericsReport check(const std::vector<Operator>& operators, const std::function<void(const OperatorCall&)>& after) {
  SilentProgress silent;
  auto run = [&](const OperatorCall& call) -> std::optional<double> {
    run_operator(call);
    after(call);
    return std::nullopt;
  };
  return check_operators({operators, kSmallest, 3}, run, silent);
}

TEST(NumericsReport, TheOperatorsPass) {
  NumericsReport report = check({kOperators.begin(), kOperators.end()}, [](const OperatorCall&) {});
  EXPECT_TRUE(report.passed()) << to_text(report);
  EXPECT_EQ(report.rows.size(), (6 * 4 + 6) * 4);
  EXPECT_NO_THROW(require_passed(report));
  Json json = to_json(report);
  EXPECT_EQ(json.at("passed"), true);
  EXPECT_FALSE(json.contains("copy_bytes_per_second"));
}

// One float32 output of one type is off by 2^-16 of itself.
void perturb(const OperatorCall& call) {
  if (call.out != DType::kF32 || call.in != DType::kBF16) return;
  auto* y = static_cast<float*>(call.y);
  y[0] *= 1 + 0x1p-16f;
}

TEST(NumericsReport, AWrongOperatorFailsWithTheExitCodeOfChecks) {
  for (Operator op : {Operator::kSoftmax, Operator::kRmsNorm, Operator::kCrossEntropy}) {
    NumericsReport report = check({op}, perturb);
    EXPECT_FALSE(report.passed());
    try {
      require_passed(report);
      FAIL() << operator_name(op);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kCheckFailed);
      EXPECT_THAT(error.what(), HasSubstr(std::string(operator_name(op)) + " BF16 to F32"));
    }
    EXPECT_THAT(to_text(report), HasSubstr("FAIL"));
  }
}

TEST(NumericsReport, TheFirstNanIsNamed) {
  NumericsReport report = check({Operator::kGelu}, [](const OperatorCall& call) {
    if (call.out == DType::kF16 && call.cols == 7) static_cast<uint16_t*>(call.y)[3 * 7 + 5] = 0x7e00;
  });
  EXPECT_FALSE(report.passed());
  EXPECT_THAT(to_text(report),
              HasSubstr("gelu F16 to F16, 33 x 7, +-80: 1 NaN and 0 infinities, the first at output [3, 5]"));
}

// What an operator leaves out stays NaN.
TEST(NumericsReport, AnElementThatIsNotWrittenIsFound) {
  SilentProgress silent;
  auto nothing = [](const OperatorCall&) { return std::optional<double>(); };
  NumericsReport report = check_operators({{Operator::kSoftcap}, kSmallest, 0}, nothing, silent);
  for (const NumericsRow& row : report.rows) {
    EXPECT_EQ(row.errors.nan_count, row.shape.rows * row.shape.cols);
    EXPECT_EQ(row.errors.first_non_finite, 0);
  }
}

TEST(NumericsReport, OnADeviceTimeAndBandwidthAreShown) {
  SilentProgress silent;
  auto run = [](const OperatorCall& call) {
    run_operator(call);
    return std::optional<double>(1e-6);
  };
  NumericsReport report = check_operators({{Operator::kSoftmax}, 231, 0}, run, silent);
  report.copy_bandwidth = 4e9;
  Json row = to_json(report).at("rows").at(0);
  EXPECT_DOUBLE_EQ(row.at("bandwidth_share"), 231 * 6 / 1e-6 / 4e9);
  EXPECT_THAT(to_text(report), HasSubstr("DRAM: 4 GB/s"));
}

TEST(NumericsReport, NoCaseAtAllIsAMistakeOfTheUser) {
  SilentProgress silent;
  EXPECT_THROW(check_operators({{Operator::kSoftmax}, 5, 0}, {}, silent), UsageError);
}

}  // namespace
}  // namespace thimble::numerics_report_test
