// packed_values_test.cpp: what one rank or one run packs, another unpacks, to the last bit.
#include "quantizer/methods/packed_values.h"

#include <gtest/gtest.h>

#include <cmath>

#include "gptq/slope/gain_tuner.h"
#include "gptq/statistics/statistics_sum.h"
#include "tests/runtime/base/error_matcher.h"

namespace thimble::packed_values_test {
namespace {

std::shared_ptr<const Hessian> hessian(int64_t size, double first) {
  Hessian result{SymmetricMatrix(size), 640 + size, 10};
  for (double& value : result.matrix.values()) value = first /= 3;
  return std::make_shared<const Hessian>(std::move(result));
}

CalibrationStatistics statistics() {
  const auto shared = hessian(3, 1e-300);
  CalibrationStatistics statistics{{{"q", shared}, {"k", shared}, {"up \"quoted\"", hessian(1, -0.1)}}, {}};
  statistics.loss.head = {{"lm_head.weight", hessian(2, 7)}};
  statistics.loss.output_fisher = {{"q", {{1.0 / 3, 0, 1e-300}, 640}}, {"empty", {{}, 1}}};
  statistics.loss.lookup_fisher = {{"table", {{0.1}, 639}}};
  statistics.loss.row_counts = {{"table", {0, int64_t{1} << 60, 3}}};
  return statistics;
}

void expect_equal(const HessianSet& found, const HessianSet& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [layer, hessian] : expected) {
    EXPECT_EQ(found.at(layer)->matrix, hessian->matrix) << layer;
    EXPECT_EQ(found.at(layer)->token_count, hessian->token_count);
    EXPECT_EQ(found.at(layer)->sequence_count, hessian->sequence_count);
  }
}

struct SlopeSolution {
  QuantizedTensor tensor;
  SlopeReport report;
  friend auto members(SlopeSolution& solution) { return std::tie(solution.tensor, solution.report); }
};

SlopeSolution slope_solution(std::vector<int32_t> codes) {
  SlopeSolution matrix{{"q", {1, static_cast<int64_t>(codes.size())}, SteppedCodes{6, {}, {-7}, {}}},
                       {1.0 / 3, 2, 1e-300, 4.5, 0.03, {0, 2}}};
  auto& stepped = std::get<SteppedCodes>(matrix.tensor.data);
  stepped.column_steps.assign(codes.size(), int16_t{300});
  stepped.codes = std::move(codes);
  return matrix;
}

template <typename T>
T again(const T& value) {
  return unpack<T>(pack(value));
}

// All but the whole, and nothing after it.
template <typename T>
void expect_exact_length(const T& value) {
  ByteVector bytes = pack(value);
  for (size_t lost = 1; lost <= bytes.size(); lost += 1 + bytes.size() / 100)
    expect_error<FormatError>([&] { unpack<T>(Bytes(bytes).first(bytes.size() - lost)); }, {"packed values"});
  bytes.push_back(std::byte{0});
  expect_error<FormatError>([&] { unpack<T>(bytes); }, {"packed values"});
}

TEST(PackedValues, StatisticsKeepBitsAndSharing) {
  const CalibrationStatistics expected = statistics(), found = again(expected);
  expect_equal(found.hessians, expected.hessians);
  EXPECT_EQ(found.hessians.at("q"), found.hessians.at("k"));
  EXPECT_NE(found.hessians.at("q"), found.hessians.at("up \"quoted\""));
  expect_equal(found.loss.head, expected.loss.head);
  EXPECT_EQ(found.loss.output_fisher, expected.loss.output_fisher);
  EXPECT_EQ(found.loss.lookup_fisher, expected.loss.lookup_fisher);
  EXPECT_EQ(found.loss.row_counts, expected.loss.row_counts);
  EXPECT_TRUE(again(CalibrationStatistics{}).loss.empty());
  expect_exact_length(expected);
}

// A sum that goes on after the way through bytes is what it would have been.
TEST(PackedValues, SumsGoOn) {
  StatisticsSum sum, packed;
  sum.add(statistics());
  packed.add(statistics());
  packed = again(packed);
  sum.add(statistics());
  packed.add(statistics());
  const CalibrationStatistics expected = std::move(sum).finish(), found = std::move(packed).finish();
  expect_equal(found.hessians, expected.hessians);
  expect_equal(found.loss.head, expected.loss.head);
  EXPECT_EQ(found.loss.output_fisher, expected.loss.output_fisher);
  EXPECT_EQ(found.loss.row_counts, expected.loss.row_counts);
}

TEST(PackedValues, SolutionsKeepCodesAndReports) {
  const GptqReport report{0.9995, 1.0 / 3, std::nextafter(7.0, 8.0), 0.0201, {0, 5}};
  const SolvedTensor solved{{"a", {2, 3}, RowScaledCodes{31, {-31, 0, 31, 1, 2, 3}, {0x3c00, 0x3c01}}}, report};
  const SolvedTensor found = again(solved);
  EXPECT_EQ(found.tensor, solved.tensor);
  EXPECT_EQ(found.report->clip_fraction, report.clip_fraction);
  EXPECT_EQ(found.report->weight_mse, report.weight_mse);
  EXPECT_EQ(found.report->weighted_loss, report.weighted_loss);
  EXPECT_EQ(found.report->damping, report.damping);
  EXPECT_EQ(found.report->dead_columns, report.dead_columns);
  expect_exact_length(solved);
  const SolvedTensor blocked{{"b", {1, 3}, Nvfp4Codes{{0x12, 0x03}, {0x38}, 0.25F}}, std::nullopt};
  EXPECT_EQ(again(blocked).tensor, blocked.tensor);
  EXPECT_FALSE(again(blocked).report);
  QuantizedModel model;
  model.tensors = {solved.tensor, blocked.tensor, {"r", {2}, RawTensor{DType::kF16, ByteVector(4)}}};
  EXPECT_EQ(again(model), model);
}

// At the ends of what one, two and four bytes hold.
TEST(PackedValues, CodesTakeAsManyBytesAsTheyNeed) {
  for (const std::vector<int32_t>& codes :
       {std::vector<int32_t>{}, std::vector<int32_t>{0, -128, 127}, std::vector<int32_t>{128, 0, -1},
        std::vector<int32_t>{-129}, std::vector<int32_t>{-32768, 32767, 1}, std::vector<int32_t>{32768, 0, -32769},
        std::vector<int32_t>{INT32_MIN, INT32_MAX, 0}}) {
    const SlopeSolution solved = slope_solution(codes), found = again(solved);
    EXPECT_EQ(found.tensor, solved.tensor);
    EXPECT_EQ(found.report.weight_mse, solved.report.weight_mse);
    EXPECT_EQ(found.report.weighted_loss, solved.report.weighted_loss);
    EXPECT_EQ(found.report.row_weighted_loss, solved.report.row_weighted_loss);
    EXPECT_EQ(found.report.estimated_bits, solved.report.estimated_bits);
    EXPECT_EQ(found.report.damping, solved.report.damping);
    EXPECT_EQ(found.report.dead_columns, solved.report.dead_columns);
    expect_exact_length(solved);
  }
  EXPECT_EQ(pack(slope_solution({128, 0, -1})).size(), pack(slope_solution({127, 0, -1})).size() + 3);
}

TEST(PackedValues, HashesAreThoseOfTheBytes) {
  const SlopeSolution solved = slope_solution({1, -300, 70000});
  EXPECT_EQ(hash_of(solved), xxh3(pack(solved)));
  EXPECT_NE(hash_of(solved), hash_of(slope_solution({1, -300, 70001})));
  EXPECT_EQ(hash_of(statistics()), xxh3(pack(statistics())));
  const StoredStatistics stored = store_in_memory(statistics());
  EXPECT_EQ(hash_of(stored), xxh3(pack(stored)));
}

TEST(PackedValues, HessiansAreRoundedAlikeWithoutBeingPacked) {
  const StoredStatistics stored = store_in_memory(statistics()),
                         expected = unpack<StoredStatistics>({pack(stored), {}});
  const StoredStatistics found = rounded(stored);
  ASSERT_EQ(found.hessians.size(), expected.hessians.size());
  for (const auto& [layer, hessian] : found.hessians) {
    EXPECT_TRUE(hessian->values().is_float32);
    EXPECT_EQ(*hessian->load(), *expected.hessians.at(layer)->load());
    EXPECT_EQ(hessian->diagonal(), expected.hessians.at(layer)->diagonal());
    EXPECT_EQ(hessian->token_count(), expected.hessians.at(layer)->token_count());
    EXPECT_EQ(hessian->sequence_count(), expected.hessians.at(layer)->sequence_count());
    for (const auto& [other, own] : found.hessians)
      EXPECT_EQ(own == hessian, stored.hessians.at(other) == stored.hessians.at(layer)) << layer << " " << other;
  }
  EXPECT_EQ(pack(found.loss), pack(stored.loss));
}

TEST(PackedValues, WhatNoValueHasIsRefused) {
  ByteVector bytes = pack(SymmetricMatrix(3));
  bytes[0] = std::byte{2};  // rows, for six values
  expect_error<FormatError>([&] { unpack<SymmetricMatrix>(bytes); }, {"packed values"});
  bytes = pack(std::vector<double>(2));
  bytes[7] = std::byte{0x80};  // of more elements than bytes
  expect_error<FormatError>([&] { unpack<std::vector<double>>(bytes); }, {"packed values"});
}

}  // namespace
}  // namespace thimble::packed_values_test
