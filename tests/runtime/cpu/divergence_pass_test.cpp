// divergence_pass_test.cpp: gradients of the divergence by every kind of gain against central differences of the
// divergence itself, over every option of the model.
#include "runtime/ops/divergence_pass.h"

#include <gtest/gtest.h>

#include "runtime/base/parallel.h"
#include "tests/runtime/cpu/divergence_samples.h"

namespace thimble {
namespace {

constexpr int64_t kSequences = DivergenceSample::kSequences;

class DivergenceOfCases : public testing::TestWithParam<GolfCase> {
 protected:
  // The derivative of the divergence as `value` (of gains_) moves. With `relative`, by its logarithm.
  double derivative(DivergencePass& pass, float& value, bool relative) {
    const float before = value, step = 1.0f / 128;
    auto at = [&](float moved) {
      value = moved;
      pass.set(sample_.gains);
      return pass.divergence(0, kSequences);
    };
    const float up = relative ? before * std::exp(step) : before + step;
    const float down = relative ? before * std::exp(-step) : before - step;
    const double slope = (at(up) - at(down)) / (relative ? 2.0 * step : static_cast<double>(up - down));
    value = before;
    return slope;
  }

  void expect_slope(DivergencePass& pass, float& value, bool relative, double found, const std::string& what) {
    const double slope = derivative(pass, value, relative);
    EXPECT_NEAR(found, slope, 0.02 * std::abs(slope) + 2e-3) << what;
  }

  DivergenceSample sample_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Options, DivergenceOfCases, testing::ValuesIn(kGolfCases),
                         [](const auto& test) { return test.param.name; });

TEST_P(DivergenceOfCases, GradientsAreWhatDifferencesFind) {
  std::unique_ptr<DivergencePass> pass = sample_.pass();
  pass->set(sample_.gains);
  const GainGradients found = pass->gradients(0, kSequences);
  EXPECT_GT(found.divergence, 0);
  EXPECT_NEAR(found.divergence, pass->divergence(0, kSequences), 1e-5 * found.divergence + 1e-5);
  ASSERT_EQ(found.rows.size(), sample_.gains.rows.size());
  for (auto& [name, gains] : sample_.gains.rows) {
    ASSERT_EQ(found.rows.at(name).size(), gains.size()) << name;
    const size_t row = gains.size() / 3;
    expect_slope(*pass, gains[row], true, found.rows.at(name)[row], name);
  }
  expect_slope(*pass, sample_.gains.head, true, found.head, "head");
  ASSERT_EQ(found.small.size(), sample_.gains.small.size());
  for (auto& [name, values] : sample_.gains.small) {
    ASSERT_EQ(found.small.at(name).size(), values.size()) << name;
    for (size_t i : {size_t{0}, values.size() - 1})
      expect_slope(*pass, values[i], false, found.small.at(name)[i], name);
  }
}

TEST_P(DivergenceOfCases, OfTheTeacherItselfIsZero) {
  sample_.student = sample_.teacher;
  Gains none;
  none.small = sample_.gains.small;
  std::unique_ptr<DivergencePass> pass = sample_.pass();
  pass->set(none);
  const GainGradients found = pass->gradients(0, kSequences);
  EXPECT_NEAR(found.divergence, 0, 1e-4);
  for (const auto& [name, values] : found.rows)
    for (double value : values) EXPECT_NEAR(value, 0, 1e-3) << name;
}

// Of a sequence alone, then of all: sums are the same for any number of threads.
TEST_P(DivergenceOfCases, ThreadsDoNotChangeBits) {
  std::unique_ptr<DivergencePass> pass = sample_.pass();
  pass->set(sample_.gains);
  const GainGradients expected = pass->gradients(1, 2);
  for (int threads : {1, 3}) {
    ThreadLimit limit(threads);
    std::unique_ptr<DivergencePass> other = sample_.pass();
    other->set(sample_.gains);
    other->gradients(0, 1);
    const GainGradients found = other->gradients(1, 2);
    EXPECT_EQ(found.divergence, expected.divergence);
    EXPECT_EQ(found.rows, expected.rows);
    EXPECT_EQ(found.head, expected.head);
    EXPECT_EQ(found.small, expected.small);
  }
}

TEST(DivergenceSequences, AreBoundedByTheMemoryOfLogits) {
  ModelConfig config = small_golf_config();
  config.vocab_size = 1024;
  EXPECT_EQ(divergence_sequences(config, 2049), kMostTeacherBytes / (2048 * 1024 * 4));
  config.vocab_size = 1 << 16;
  EXPECT_EQ(divergence_sequences(config, 1 << 20), 2);
}

}  // namespace
}  // namespace thimble
