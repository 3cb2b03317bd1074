// distortion_test.cpp: errors of weights and predictions with known values.
#include "eval/score/distortion.h"

#include <gtest/gtest.h>

#include "runtime/base/error.h"
#include "tests/eval/score/fake_scorers.h"

namespace thimble {
namespace {

using namespace thimble::testing;

TEST(WeightError, KnownValues) {
  const std::vector<float> original = {3, 0, 4}, compressed = {3, 1, 4};
  WeightError error = weight_error(original, compressed);
  EXPECT_DOUBLE_EQ(error.relative_error, 0.2);
  EXPECT_DOUBLE_EQ(error.max_absolute_error, 1);
  EXPECT_EQ(weight_error(original, original).relative_error, 0);
}

TEST(WeightError, ZerosAndNothing) {
  const std::vector<float> zeros(3, 0), ones(3, 1);
  EXPECT_EQ(weight_error(zeros, zeros).relative_error, 0);
  EXPECT_EQ(weight_error({}, {}).relative_error, 0);
  EXPECT_TRUE(std::isinf(weight_error(zeros, ones).relative_error));
}

TEST(WeightError, NanIsNotHidden) {
  const std::vector<float> original = {1, 2}, broken = {std::nanf(""), 2};
  EXPECT_TRUE(std::isnan(weight_error(original, broken).relative_error));
  EXPECT_TRUE(std::isnan(weight_error(original, broken).max_absolute_error));
}

class PredictionErrorTest : public ::testing::Test {
 protected:
  std::vector<Token> tokens_ = std::vector<Token>(41, 1);
  std::vector<Window> windows_ = plan_windows(40, 8, 4);
};

TEST_F(PredictionErrorTest, EqualModelsDoNotDiffer) {
  ContextScorer a(16, 8), b(16, 8);
  PredictionError error = prediction_error(a, b, tokens_, windows_, 3);
  EXPECT_EQ(error.mean_kl_nats, 0);
  EXPECT_EQ(error.targets, 14);  // targets 0, 3, ..., 39
}

TEST_F(PredictionErrorTest, KlOfTwoTokensInClosedForm) {
  // Logits (0, 0) against (0, 1) everywhere: KL = ln((1 + e) / 2) - 1/2.
  class TwoTokens final : public FakeScorer {
   public:
    explicit TwoTokens(float logit) : FakeScorer(2, 8), logit_(logit) {}
    void score(std::span<const ScoreWindow>, std::span<float>) override {}
    void log_probabilities(std::span<const Token>, MatrixView out) override {
      const float norm = std::log(1 + std::exp(logit_));
      for (int64_t r = 0; r < out.rows; ++r) {
        out.row(r)[0] = -norm;
        out.row(r)[1] = logit_ - norm;
      }
    }

   private:
    float logit_;
  } flat(0), tilted(1);
  PredictionError error = prediction_error(flat, tilted, tokens_, windows_, 1);
  const double expected = std::log((1 + std::exp(1.0)) / 2) - 0.5;
  EXPECT_EQ(error.targets, 40);
  EXPECT_NEAR(error.mean_kl_nats, expected, 1e-6);
  EXPECT_NEAR(error.max_kl_nats, expected, 1e-6);
}

TEST_F(PredictionErrorTest, ImpossibleComparisonsAreUsageErrors) {
  UniformScorer a(16, 8), b(17, 8);
  EXPECT_THROW(prediction_error(a, b, tokens_, windows_, 1), UsageError);
  EXPECT_THROW(prediction_error(a, a, tokens_, windows_, 0), UsageError);
  EXPECT_THROW(prediction_error(a, a, tokens_, {}, 1), UsageError);
}

}  // namespace
}  // namespace thimble
