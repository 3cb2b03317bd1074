// fisher_test.cpp: the output Fisher against plain sums in float64, counts of looked-up rows, and what is refused.
#include "gptq/statistics/fisher.h"

#include <gtest/gtest.h>

#include <limits>

#include "gptq/statistics/statistics_sum.h"
#include "runtime/base/parallel.h"
#include "runtime/families/golf/golf_layout.h"
#include "tests/gptq/statistics/gptq_samples.h"
#include "tests/runtime/base/error_matcher.h"
#include "tests/runtime/families/golf/random_model.h"

namespace thimble::fisher_test {
namespace {

const std::string kMatrix = "blocks.0.mlp.fc.weight";

// Sequences of these gradients at kMatrix, and of lookups in the table of tokens.
LossStatistics collect(std::span<const Matrix> gradients) {
  const Network network = golf_network(small_golf_config());
  FisherCollector collector(network);
  for (const Matrix& gradient : gradients) {
    collector.on_output_gradient(kMatrix, 0, gradient, {});
    std::vector<int32_t> rows;
    for (int64_t p = 0; p < gradient.rows(); ++p) rows.push_back(static_cast<int32_t>(p % 3 * 14));
    collector.on_lookup_gradient(kTokenEmbedding, rows, gradient);
    collector.end_sequence();
  }
  return std::move(collector).finish();
}

std::vector<Matrix> random_gradients() {
  return {random_matrix(5, 70, 1), random_matrix(40, 70, 2), random_matrix(1, 70, 3)};
}

TEST(Fisher, IsTheMeanSquareOverAllTokens) {
  std::vector<Matrix> gradients = random_gradients();
  LossStatistics found = collect(gradients);
  for (const Fisher* fisher : {&found.output_fisher.at(kMatrix), &found.lookup_fisher.at(kTokenEmbedding)}) {
    ASSERT_EQ(fisher->mean_square.size(), 70U);
    EXPECT_EQ(fisher->token_count, 46);
    double mean = 0;
    for (int64_t r = 0; r < 70; ++r) {
      double sum = 0;
      for (const Matrix& gradient : gradients)
        for (int64_t p = 0; p < gradient.rows(); ++p) sum += double{gradient(p, r)} * gradient(p, r);
      EXPECT_NEAR(fisher->mean_square[static_cast<size_t>(r)], sum / 46, 1e-14);
      mean += sum / 46 / 70;
    }
    EXPECT_NEAR(fisher->mean(), mean, 1e-13);
  }
}

TEST(Fisher, CountsLookedUpRows) {
  // Rows 0, 14, 28, 0, 14, ... of a table of 29.
  std::vector<int64_t> expected(29);
  expected[0] = 2 + 14 + 1;
  expected[14] = 2 + 13;
  expected[28] = 1 + 13;
  EXPECT_EQ(collect(random_gradients()).row_counts.at(kTokenEmbedding), expected);
}

TEST(Fisher, SmallSquaresSurviveLargeOnes) {
  std::vector<Matrix> gradients(11, Matrix(1, 1));
  gradients[0](0, 0) = 4096;  // in float32, 2^24 + 1 is 2^24
  for (size_t i = 1; i < gradients.size(); ++i) gradients[i](0, 0) = 1;
  EXPECT_EQ(collect(gradients).output_fisher.at(kMatrix).mean_square[0], (16777216.0 + 10) / 11);
}

TEST(Fisher, SameForAnyThreadCount) {
  std::vector<Matrix> gradients = {random_matrix(300, 600, 1), random_matrix(70, 600, 2)};
  std::vector<LossStatistics> found;
  for (int threads : {1, 4}) {
    ThreadLimit limit(threads);
    found.push_back(collect(gradients));
  }
  EXPECT_EQ(found[0].output_fisher, found[1].output_fisher);
}

TEST(Fisher, NamesAGradientThatIsNotFinite) {
  for (float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    Matrix gradient = random_matrix(30, 6, 4);
    gradient(17, 4) = bad;
    const Network network = golf_network(small_golf_config());
    FisherCollector collector(network, 7);
    collector.on_output_gradient(kMatrix, 0, random_matrix(5, 6, 1), {});
    collector.end_sequence();
    expect_error<Error>([&] { collector.on_output_gradient(kMatrix, 0, gradient, {}); },
                        {kMatrix, "sequence 8,", "position 17,", "output 4;"});
  }
}

// The output head's gradients come in pieces of a window.
TEST(Fisher, PiecesOfAWindowAreOneSequence) {
  Matrix window = random_matrix(30, 6, 4);
  const Network network = golf_network(small_golf_config());
  FisherCollector whole(network), pieces(network), damaged(network);
  whole.on_output_gradient(kMatrix, 0, window, {});
  pieces.on_output_gradient(kMatrix, 0, window.view().block_rows(0, 16), {});
  pieces.on_output_gradient(kMatrix, 16, window.view().block_rows(16, 14), {});
  window(20, 4) = std::numeric_limits<float>::quiet_NaN();
  expect_error<Error>([&] { damaged.on_output_gradient(kMatrix, 16, window.view().block_rows(16, 14), {}); },
                      {kMatrix, "sequence 0,", "position 20,", "output 4;"});
  const Fisher expected = std::move(whole).finish().output_fisher.at(kMatrix);
  const Fisher found = std::move(pieces).finish().output_fisher.at(kMatrix);
  EXPECT_EQ(found.token_count, 30);
  for (size_t r = 0; r < 6; ++r) EXPECT_NEAR(found.mean_square[r], expected.mean_square[r], 1e-14);
}

TEST(Fisher, RefusesToAverageNothing) {
  const Network network = golf_network(small_golf_config());
  EXPECT_THROW(std::move(FisherCollector(network)).finish(), Error);
}

// The statistics of a set, from gradients alone and one Hessian.
CalibrationStatistics part_of(std::span<const Matrix> gradients) {
  CalibrationStatistics statistics;
  statistics.loss = collect(gradients);
  std::vector<std::string> layers = {"a"}, head = {"lm_head.weight"};
  HessianCollector hessians, heads;
  for (const Matrix& x : gradients) {
    hessians.on_linear_input(layers, x);
    heads.on_linear_input(head, x);
  }
  statistics.hessians = std::move(hessians).finish();
  statistics.loss.head = std::move(heads).finish();
  return statistics;
}

TEST(StatisticsSum, IsThatOfAllSequences) {
  std::vector<Matrix> gradients = random_gradients();
  std::span<const Matrix> all(gradients);
  StatisticsSum sum;
  sum.add(part_of(all.first(1)));
  sum.add(part_of(all.subspan(1)));
  CalibrationStatistics found = std::move(sum).finish(), expected = part_of(all);
  for (auto member : {&LossStatistics::output_fisher, &LossStatistics::lookup_fisher})
    for (const auto& [name, fisher] : expected.loss.*member) {
      const Fisher& other = (found.loss.*member).at(name);
      EXPECT_EQ(other.token_count, fisher.token_count);
      for (size_t r = 0; r < fisher.mean_square.size(); ++r)
        EXPECT_NEAR(other.mean_square[r], fisher.mean_square[r], 1e-14);
    }
  EXPECT_EQ(found.loss.row_counts, expected.loss.row_counts);
  EXPECT_EQ(found.loss.head.at("lm_head.weight")->token_count, 46);
  EXPECT_NEAR(found.loss.head.at("lm_head.weight")->matrix(9, 3), expected.loss.head.at("lm_head.weight")->matrix(9, 3),
              1e-12);
  EXPECT_EQ(found.hessians.at("a")->token_count, 46);
}

TEST(StatisticsSum, PartsWithoutLossStatisticsHaveNone) {
  std::vector<Matrix> gradients = random_gradients();
  StatisticsSum sum;
  for (int part = 0; part < 2; ++part) sum.add({part_of(gradients).hessians, {}});
  CalibrationStatistics found = std::move(sum).finish();
  EXPECT_TRUE(found.loss.empty());
  EXPECT_TRUE(found.loss.head.empty());
  EXPECT_EQ(found.hessians.at("a")->token_count, 92);
}

TEST(StatisticsSum, PartsMustHaveTheSameNamesAndSizes) {
  std::vector<Matrix> gradients = random_gradients();
  CalibrationStatistics part = part_of(gradients), lacking = part, wider = part, renamed = part, shorter = part;
  lacking.loss.output_fisher.clear();
  wider.loss.lookup_fisher.begin()->second.mean_square.push_back(0);
  renamed.loss.output_fisher["other"] = renamed.loss.output_fisher.at(kMatrix);
  renamed.loss.output_fisher.erase(kMatrix);
  shorter.loss.row_counts.begin()->second.pop_back();
  for (const CalibrationStatistics& other : {lacking, wider, renamed, shorter}) {
    StatisticsSum sum;
    sum.add(part);
    EXPECT_THROW(sum.add(other), Error);
  }
}

}  // namespace
}  // namespace thimble::fisher_test
