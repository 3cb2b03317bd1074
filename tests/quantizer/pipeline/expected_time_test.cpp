// expected_time_test.cpp: the arithmetic of a run against formulas written out for one network, and what it grows with.
#include "quantizer/pipeline/expected_time.h"

#include <gtest/gtest.h>

#include "quantizer/methods/slope/learn_codes.h"
#include "tests/quantizer/methods/slope/slope_model.h"

namespace thimble::expected_time_test {
namespace {

class ExpectedTime : public ::testing::Test {
 protected:
  static QuantizeRequest request() {
    QuantizeRequest request;
    request.calibration.sequences = 8;
    request.calibration.length = 32;
    request.cross_sequences = 8;
    request.tuner.steps = request.codes.steps = 0;
    request.slope.cross_term = 0;
    request.slope.trellis_bits = 8;
    request.fisher = true;
    return request;
  }
  RunWork work(const QuantizeRequest& request, int64_t scored = 0) const {
    return work_of_run(request, network_, scored);
  }
  double weights() const {
    double count = 0;
    for (const MatrixUse& matrix : network_.matrices) count += static_cast<double>(matrix.rows * matrix.columns);
    return count;
  }

  const Network network_ = *random_golf_weights(two_layer_config(32, 2, 60, 8), 1)->network;
};

// Two operations for each weight that multiplies, and for each key and value that a query reads on average.
TEST_F(ExpectedTime, ScoringIsForwardPassesOfTwoModels) {
  double multiplied = 0, attended = 0;
  for (const Node& node : network_.nodes) {
    if (const auto* linear = std::get_if<op::Linear>(&node.operation))
      multiplied += static_cast<double>(network_.matrix(linear->weight).rows * network_.matrix(linear->weight).columns);
    if (const auto* attention = std::get_if<op::Attention>(&node.operation))
      attended += static_cast<double>(2 * attention->heads * attention->head_dim * 32 / 2);
  }
  EXPECT_GT(attended, 0);
  multiplied += static_cast<double>(network_.vocabulary() * network_.matrix(network_.head.weight).columns);
  EXPECT_DOUBLE_EQ(work(request(), 100).scoring.products, 2 * 100 * 2 * (multiplied + attended));
  EXPECT_EQ(work(request()).scoring.products, 0);
}

TEST_F(ExpectedTime, GrowsWithTokens) {
  const RunWork once = work(request());
  QuantizeRequest longer = request();
  longer.calibration.sequences = 16;
  const RunWork twice = work(longer);
  EXPECT_DOUBLE_EQ(twice.writing.products, 2 * once.writing.products);
  EXPECT_DOUBLE_EQ(twice.statistics.products, 2 * once.statistics.products);
  EXPECT_EQ(twice.searching.products, once.searching.products);
  longer.statistics_sequences = 8;
  EXPECT_EQ(work(longer).statistics.products, once.statistics.products);
  longer.given_text.texts = {"text"};
  EXPECT_EQ(work(longer).writing.products, 0) << "nothing is written";
}

TEST_F(ExpectedTime, GrowsWithWhatIsAskedFor) {
  const ComputeWork plain = work(request()).searching;
  EXPECT_GT(plain.paths, weights());
  QuantizeRequest crossed = request();
  crossed.slope.cross_term = 1;
  EXPECT_GT(work(crossed).searching.products, plain.products);
  QuantizeRequest tuned = request();
  tuned.tuner.steps = 4;
  EXPECT_GT(work(tuned).searching.products, plain.products);
  QuantizeRequest scalar = request();
  scalar.slope.trellis_bits = 0;
  EXPECT_EQ(work(scalar).searching.paths, 0);
}

// As many steps for each block, and paths for all weights once in so many.
TEST_F(ExpectedTime, LearningGrowsWithStepsAndBlocks) {
  const ComputeWork plain = work(request()).searching;
  QuantizeRequest learning = request();
  learning.codes.steps = 40;
  const ComputeWork learned = work(learning).searching;
  EXPECT_NEAR(learned.paths - plain.paths, 40.0 / kStepsPerPath * weights(), 1e-6 * learned.paths);
  learning.codes.block = 5'000;
  const auto blocks = static_cast<double>(learned_blocks(network_, learning.codes.block).size());
  ASSERT_GT(blocks, 2);
  const ComputeWork by_block = work(learning).searching;
  EXPECT_NEAR(by_block.products - plain.products, blocks * (learned.products - plain.products),
              1e-6 * by_block.products);
  EXPECT_EQ(by_block.paths, learned.paths);
}

TEST_F(ExpectedTime, SecondsAreWorkOverSpeed) {
  const RunWork run = {{1e9, 0}, {2e9, 0}, {2e9, 3e6}, {4e9, 0}};
  const RunSeconds once = expected_seconds(run, {1e9, 1e6}), faster = expected_seconds(run, {2e9, 2e6});
  EXPECT_DOUBLE_EQ(once.statistics, 2 * once.writing);
  EXPECT_DOUBLE_EQ(once.searching, 2 * once.writing + 3);
  EXPECT_DOUBLE_EQ(once.total(), 2 * faster.total());
  const ComputeWork machine = measure_machine(8);
  EXPECT_GT(machine.products, 1e6);
  EXPECT_GT(machine.paths, 1e2);
}

}  // namespace
}  // namespace thimble::expected_time_test
