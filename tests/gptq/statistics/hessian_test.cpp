// hessian_test.cpp: Hessians against plain sums in float64, their sharing, and what is refused.
#include "gptq/statistics/hessian.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "runtime/base/parallel.h"
#include "tests/gptq/statistics/gptq_samples.h"
#include "tests/runtime/base/error_matcher.h"

namespace thimble::hessian_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kLayer[] = {"layer"};

Hessian accumulate(const std::vector<Matrix>& sequences) {
  HessianCollector collector;
  for (const Matrix& sequence : sequences) collector.on_linear_input(kLayer, sequence);
  return *std::move(collector).finish().at("layer");
}

class HessianShapes : public ::testing::TestWithParam<std::vector<std::pair<int64_t, int64_t>>> {};

TEST_P(HessianShapes, MatchesThePlainSum) {
  std::vector<Matrix> sequences;
  uint32_t seed = 1;
  for (auto [tokens, columns] : GetParam()) sequences.push_back(random_matrix(tokens, columns, seed++));
  int64_t columns = sequences[0].cols(), tokens = 0;
  MatrixF64 expected(columns, columns);
  for (const Matrix& x : sequences) {
    tokens += x.rows();
    for (int64_t t = 0; t < x.rows(); ++t)
      for (int64_t i = 0; i < columns; ++i)
        for (int64_t j = 0; j < columns; ++j) expected(i, j) += double{x(t, i)} * x(t, j);
  }
  Hessian hessian = accumulate(sequences);
  EXPECT_EQ(hessian.token_count, tokens);
  EXPECT_EQ(hessian.sequence_count, static_cast<int64_t>(sequences.size()));
  ASSERT_EQ(hessian.matrix.size(), columns);
  for (int64_t i = 0; i < columns; ++i)
    for (int64_t j = 0; j < columns; ++j)
      ASSERT_NEAR(hessian.matrix(i, j), expected(i, j) / static_cast<double>(tokens), 2e-6) << i << ' ' << j;
}

INSTANTIATE_TEST_SUITE_P(Shapes, HessianShapes,
                         ::testing::Values(std::vector<std::pair<int64_t, int64_t>>{{1, 1}},
                                           std::vector<std::pair<int64_t, int64_t>>{{1, 5}, {2, 5}},
                                           std::vector<std::pair<int64_t, int64_t>>{{0, 3}, {7, 3}},
                                           std::vector<std::pair<int64_t, int64_t>>{{50, 257}, {33, 257}},
                                           std::vector<std::pair<int64_t, int64_t>>{{5000, 9}, {2048, 9}, {2049, 9}}));

TEST(Hessian, SmallTermsSurviveManySequences) {
  // In float32, 2^24 + 1 is 2^24: the sum over sequences has to be kept in float64.
  Matrix large(1, 1), one(1, 1);
  large(0, 0) = 4096;
  one(0, 0) = 1;
  std::vector<Matrix> sequences(11, one);
  sequences[0] = large;
  EXPECT_EQ(accumulate(sequences).matrix(0, 0), (16777216.0 + 10) / 11);
}

TEST(Hessian, SameForAnyThreadCount) {
  std::vector<Matrix> sequences = {random_matrix(700, 600, 1), random_matrix(300, 600, 2)};
  std::vector<Hessian> found;
  for (int threads : {1, 4}) {
    ThreadLimit limit(threads);
    found.push_back(accumulate(sequences));
  }
  EXPECT_EQ(found[0].matrix, found[1].matrix);
}

TEST(Hessian, NamesAValueThatIsNotFinite) {
  for (float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                    std::numeric_limits<float>::quiet_NaN()}) {
    Matrix x = random_matrix(2100, 6, 4);
    x(2077, 4) = bad;
    const std::string layer[] = {"blocks.3.mlp.fc.weight"};
    HessianCollector collector;
    collector.on_linear_input(layer, random_matrix(5, 6, 1));
    EXPECT_THAT(bad_input_message([&] { collector.on_linear_input(layer, x); }),
                AllOf(HasSubstr("blocks.3.mlp.fc.weight"), HasSubstr("sequence 1,"), HasSubstr("position 2077,"),
                      HasSubstr("column 4;")));
  }
}

TEST(Hessian, NamesAColumnWhoseSquaresOverflow) {
  Matrix x(3, 2);
  x(1, 1) = 1e20F;
  HessianCollector collector;
  EXPECT_THAT(bad_input_message([&] { collector.on_linear_input(kLayer, x); }),
              AllOf(HasSubstr("column 1"), HasSubstr("overflows")));
}

TEST(CrossProducts, MatchLoopsBeyondOneFlush) {
  const Matrix x = random_matrix(2100, 5, 1), y = random_matrix(2100, 7, 2);
  MatrixF64 sum(5, 7);
  for (int i = 0; i < 2; ++i) add_cross_products(x, y, "layer", i, sum);
  for (int64_t i = 0; i < 5; ++i)
    for (int64_t j = 0; j < 7; ++j) {
      double expected = 0;
      for (int64_t t = 0; t < x.rows(); ++t) expected += 2 * double{x(t, i)} * y(t, j);
      EXPECT_NEAR(sum(i, j), expected, 2e-2) << i << ' ' << j;
    }
}

TEST(CrossProducts, NameWhatIsNotFinite) {
  Matrix x = random_matrix(2100, 6, 4);
  const Matrix y = random_matrix(2100, 3, 5);
  MatrixF64 sum(6, 3);
  x(2077, 4) = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(
      bad_input_message([&] { add_cross_products(x, y, "fc.weight", 3, sum); }),
      AllOf(HasSubstr("fc.weight"), HasSubstr("sequence 3,"), HasSubstr("position 2077,"), HasSubstr("column 4;")));
  Matrix high(3, 6), other(3, 3);
  high(1, 4) = other(1, 2) = 1e20F;
  EXPECT_THAT(bad_input_message([&] { add_cross_products(high, other, "fc.weight", 3, sum); }),
              AllOf(HasSubstr("column 4"), HasSubstr("overflows")));
}

TEST(Hessian, RefusesToAverageNothing) {
  EXPECT_THAT(bad_input_message([] {
                mean_hessians(std::vector<SharedHessian>{{{"lonely"}, {SymmetricMatrix(3)}}});
              }),
              HasSubstr("lonely"));
}

TEST(HessianCollector, LayersWithOneInputShareOneHessian) {
  HessianCollector collector;
  std::vector<std::string> attention = {"q", "k", "v"}, mlp = {"fc"};
  Matrix x = random_matrix(10, 4, 1), y = random_matrix(10, 6, 2);
  for (int sequence = 0; sequence < 3; ++sequence) {
    collector.on_linear_input(attention, x);
    collector.on_linear_input(mlp, y);
  }
  HessianSet hessians = std::move(collector).finish();
  ASSERT_EQ(hessians.size(), 4U);
  EXPECT_EQ(hessians.at("q"), hessians.at("k"));
  EXPECT_EQ(hessians.at("q"), hessians.at("v"));
  EXPECT_EQ(hessians.at("q")->matrix, accumulate({x, x, x}).matrix);
  EXPECT_EQ(hessians.at("fc")->matrix, accumulate({y, y, y}).matrix);
  EXPECT_EQ(hessians.at("fc")->sequence_count, 3);
}

TEST(HessianCollector, RefusesInconsistentObservations) {
  std::vector<std::string> both = {"q", "k"}, one = {"q"}, other = {"fc"};
  Matrix x = random_matrix(2, 4, 1);
  HessianCollector changed;
  changed.on_linear_input(both, x);
  EXPECT_THROW(changed.on_linear_input(one, x), Error);
  EXPECT_THROW(changed.on_linear_input(both, random_matrix(2, 5, 1)), Error);

  HessianCollector uneven;
  uneven.on_linear_input(one, x);
  uneven.on_linear_input(one, x);
  uneven.on_linear_input(other, x);
  EXPECT_THROW(std::move(uneven).finish(), Error);
}

}  // namespace
}  // namespace thimble::hessian_test
