// packed_slope_test.cpp: matrices solved by the method `slope` survive the way through bytes.
#include "quantizer/methods/slope/packed_slope.h"

#include <gtest/gtest.h>

#include "tests/runtime/base/error_matcher.h"

namespace thimble {
namespace {

SlopeMatrix matrix(std::vector<int32_t> codes) {
  SlopeMatrix matrix{{"q", {1, static_cast<int64_t>(codes.size())}, SteppedCodes{6, {}, {-7}, {}}},
                     {1.0 / 3, 2, 1e-300, 4.5, 0.03, {0, 2}}};
  auto& stepped = std::get<SteppedCodes>(matrix.tensor.data);
  stepped.column_steps.assign(codes.size(), int16_t{300});
  stepped.codes = std::move(codes);
  return matrix;
}

// At the ends of what one, two and four bytes hold.
TEST(PackedSlope, KeepsCodesStepsAndReports) {
  for (const std::vector<int32_t>& codes :
       {std::vector<int32_t>{0, -128, 127}, std::vector<int32_t>{128, 0, -1}, std::vector<int32_t>{-32768, 32767, 1},
        std::vector<int32_t>{32768, 0, -32769}, std::vector<int32_t>{INT32_MIN, INT32_MAX, 0}}) {
    const SlopeMatrix solved = matrix(codes), again = unpack_slope_matrix(pack_slope_matrix(solved));
    EXPECT_EQ(again.tensor, solved.tensor);
    EXPECT_EQ(again.report.weight_mse, solved.report.weight_mse);
    EXPECT_EQ(again.report.weighted_loss, solved.report.weighted_loss);
    EXPECT_EQ(again.report.row_weighted_loss, solved.report.row_weighted_loss);
    EXPECT_EQ(again.report.estimated_bits, solved.report.estimated_bits);
    EXPECT_EQ(again.report.damping, solved.report.damping);
    EXPECT_EQ(again.report.dead_columns, solved.report.dead_columns);
  }
  EXPECT_EQ(pack_slope_matrix(matrix({128, 0, -1})).size(), pack_slope_matrix(matrix({127, 0, -1})).size() + 3);
}

TEST(PackedSlope, TruncatedBytesAreRefused) {
  const ByteVector bytes = pack_slope_matrix(matrix({1, 2, 3}));
  for (size_t lost = 1; lost <= bytes.size(); ++lost)
    expect_error<FormatError>([&] { unpack_slope_matrix(Bytes(bytes).first(bytes.size() - lost)); },
                              {"packed results"});
}

}  // namespace
}  // namespace thimble
