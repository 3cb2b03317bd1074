// statistics_sum_test.cpp: the Hessians of a calibration set from those of its parts.
#include "gptq/statistics/statistics_sum.h"

#include <gtest/gtest.h>

#include "tests/gptq/statistics/gptq_samples.h"
#include "tests/runtime/base/error_matcher.h"

namespace thimble::statistics_sum_test {
namespace {

// Layers "q" and "k" with one input, "up" with another.
HessianSet collect(std::span<const Matrix> sequences) {
  std::vector<std::string> attention = {"q", "k"}, mlp = {"up"};
  HessianCollector collector;
  for (const Matrix& x : sequences) {
    collector.on_linear_input(attention, x);
    collector.on_linear_input(mlp, ConstMatrixView(x).block_cols(0, 2));
  }
  return std::move(collector).finish();
}

HessianSet sum_of(const std::vector<HessianSet>& parts) {
  StatisticsSum sum;
  for (const HessianSet& part : parts) sum.add({part, {}});
  return std::move(sum).finish().hessians;
}

TEST(HessianSum, IsTheHessianOfAllSequences) {
  // Parts of different numbers of sequences and tokens.
  std::vector<Matrix> all;
  for (uint32_t i = 0; i < 5; ++i) all.push_back(random_matrix(3 + 40 * i, 70, i + 1));
  std::span<const Matrix> view(all);
  HessianSet expected = collect(view);
  HessianSet found = sum_of({collect(view.first(1)), collect(view.subspan(1, 3)), collect(view.subspan(4))});
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found.at("q"), found.at("k"));
  for (const auto& [layer, hessian] : expected) {
    EXPECT_EQ(found.at(layer)->token_count, hessian->token_count);
    EXPECT_EQ(found.at(layer)->sequence_count, 5);
    const SymmetricMatrix& matrix = hessian->matrix;
    for (int64_t i = 0; i < matrix.size(); ++i)
      for (int64_t j = 0; j <= i; ++j) ASSERT_NEAR(found.at(layer)->matrix(i, j), matrix(i, j), 1e-12) << layer;
  }
}

TEST(HessianSum, TheFirstPartIsLeftAsItWas) {
  std::vector<Matrix> all = {random_matrix(5, 4, 1), random_matrix(6, 4, 2)};
  HessianSet first = collect(std::span(all).first(1));
  SymmetricMatrix before = first.at("q")->matrix;
  sum_of({first, collect(std::span(all).subspan(1))});
  EXPECT_EQ(first.at("q")->matrix, before);
}

TEST(HessianSum, PartsMustHaveTheSameInputs) {
  std::vector<Matrix> all = {random_matrix(5, 4, 1)}, wider = {random_matrix(5, 6, 1)};
  HessianSet part = collect(all), lacking = part, unshared = part;
  lacking.erase("up");
  unshared["k"] = std::make_shared<const Hessian>(*part.at("k"));
  for (const HessianSet& other : {lacking, unshared, collect(wider)}) {
    EXPECT_THROW(sum_of({part, other}), Error);
    EXPECT_THROW(sum_of({other, part}), Error);
  }
}

TEST(HessianParts, CoverEverySequenceOnce) {
  for (int64_t sequences : {1, 2, 7, 8, 9, 64, 1000}) {
    size_t next = 0;
    for (size_t part = 0; part < hessian_part_count(sequences); ++part) {
      Share share = hessian_part(sequences, part);
      EXPECT_EQ(share.begin, next);
      EXPECT_GT(share.size(), 0U);
      next = share.end;
    }
    EXPECT_EQ(next, static_cast<size_t>(sequences));
    EXPECT_LE(hessian_part_count(sequences), 8U);
  }
}

}  // namespace
}  // namespace thimble::statistics_sum_test
