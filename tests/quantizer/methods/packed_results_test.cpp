// packed_results_test.cpp: what one rank packs, another unpacks, to the last bit.
#include "quantizer/methods/packed_results.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/runtime/base/error_matcher.h"

namespace thimble {
namespace {

std::shared_ptr<const Hessian> hessian(int64_t size, double first) {
  Hessian result{SymmetricMatrix(size), 640 + size, 10};
  for (double& value : result.matrix.values()) value = first /= 3;
  return std::make_shared<const Hessian>(std::move(result));
}

SolvedTensor solution(const std::string& name, int64_t rows, int64_t columns, GptqReport report) {
  RowScaledCodes codes{31, {}, {}};
  for (int64_t i = 0; i < rows * columns; ++i) codes.codes.push_back(static_cast<int8_t>(i % 63 - 31));
  for (int64_t r = 0; r < rows; ++r) codes.row_scales.push_back(static_cast<uint16_t>(0x3c00 + r));
  return {{name, {rows, columns}, std::move(codes)}, std::move(report)};
}

TEST(PackedResults, HessiansKeepBitsAndSharing) {
  auto shared = hessian(3, 1e-300);
  HessianSet set = {{"q", shared}, {"k", shared}, {"up \"quoted\"", hessian(1, -0.1)}, {"down", hessian(7, 1e300)}};
  HessianSet again = unpack_hessians(pack_hessians(set));
  ASSERT_EQ(again.size(), set.size());
  for (const auto& [layer, expected] : set) {
    const Hessian& found = *again.at(layer);
    EXPECT_EQ(found.matrix, expected->matrix) << layer;
    EXPECT_EQ(found.token_count, expected->token_count);
    EXPECT_EQ(found.sequence_count, expected->sequence_count);
  }
  EXPECT_EQ(again.at("q"), again.at("k"));
  EXPECT_NE(again.at("q"), again.at("down"));
  EXPECT_TRUE(unpack_hessians(pack_hessians({})).empty());
}

TEST(PackedResults, StatisticsKeepBits) {
  CalibrationStatistics statistics{{{"q", hessian(3, 0.1)}}, {}};
  statistics.loss.head = {{"lm_head.weight", hessian(2, 7)}};
  statistics.loss.output_fisher = {{"q", {{1.0 / 3, 0, 1e-300}, 640}}, {"empty", {{}, 1}}};
  statistics.loss.lookup_fisher = {{"table", {{0.1}, 639}}};
  statistics.loss.row_counts = {{"table", {0, int64_t{1} << 60, 3}}};
  ByteVector bytes = pack_statistics(statistics);
  CalibrationStatistics again = unpack_statistics(bytes);
  EXPECT_EQ(again.hessians.at("q")->matrix, statistics.hessians.at("q")->matrix);
  EXPECT_EQ(again.loss.head.at("lm_head.weight")->matrix, statistics.loss.head.at("lm_head.weight")->matrix);
  EXPECT_EQ(again.loss.output_fisher, statistics.loss.output_fisher);
  EXPECT_EQ(again.loss.lookup_fisher, statistics.loss.lookup_fisher);
  EXPECT_EQ(again.loss.row_counts, statistics.loss.row_counts);
  EXPECT_TRUE(unpack_statistics(pack_statistics({})).loss.empty());
  for (size_t lost = 1; lost <= bytes.size(); lost += 7)
    expect_error<FormatError>([&] { unpack_statistics(Bytes(bytes).first(bytes.size() - lost)); }, {"packed results"});
}

TEST(PackedResults, SolutionsKeepCodesAndReports) {
  GptqReport report{0.9995, 1.0 / 3, std::nextafter(7.0, 8.0), 0.0201, {0, 5}};
  const SolvedTensor first = solution("a", 2, 50, report), second = solution("b", 1, 1, {});
  const SolvedTensor again = unpack_solution(pack_solution(first));
  EXPECT_EQ(again.tensor, first.tensor);
  EXPECT_EQ(again.report->clip_fraction, report.clip_fraction);
  EXPECT_EQ(again.report->weight_mse, report.weight_mse);
  EXPECT_EQ(again.report->weighted_loss, report.weighted_loss);
  EXPECT_EQ(again.report->damping, report.damping);
  EXPECT_EQ(again.report->dead_columns, report.dead_columns);
  EXPECT_TRUE(unpack_solution(pack_solution(second)).report->dead_columns.empty());
}

TEST(PackedResults, TruncatedBytesAreRefused) {
  ByteVector hessians = pack_hessians({{"q", hessian(3, 1)}}), solved = pack_solution(solution("a", 2, 3, {}));
  for (size_t lost : {size_t{1}, size_t{9}, hessians.size()})
    expect_error<FormatError>([&] { unpack_hessians(Bytes(hessians).first(hessians.size() - lost)); },
                              {"packed results"});
  expect_error<FormatError>([&] { unpack_solution(Bytes(solved).first(solved.size() - 1)); }, {"packed results"});
}

}  // namespace
}  // namespace thimble
