// sample_token_test.cpp: what decides one sampled token, and the first of a calibration sequence.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/base/random.h"
#include "runtime/ops/generator.h"
#include "tests/runtime/base/error_matcher.h"

namespace thimble::sample_token_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr double kAlmostOne = 1 - 0x1p-53;  // the largest uniform number

using Logits = std::vector<float>;

TEST(SampleToken, UniformWalksThroughTheProbabilities) {
  // Probabilities 1/8, 1/8, 1/2, 1/4.
  const Logits logits = {0.0f, 0.0f, std::log(4.0f), std::log(2.0f)};
  EXPECT_EQ(sample_token(logits, 1, 0), 0);
  EXPECT_EQ(sample_token(logits, 1, 0.1249), 0);
  EXPECT_EQ(sample_token(logits, 1, 0.1251), 1);
  EXPECT_EQ(sample_token(logits, 1, 0.2501), 2);
  EXPECT_EQ(sample_token(logits, 1, 0.7499), 2);
  EXPECT_EQ(sample_token(logits, 1, 0.7501), 3);
  EXPECT_EQ(sample_token(logits, 1, kAlmostOne), 3);
}

TEST(SampleToken, TemperatureSharpensAndFlattens) {
  const Logits logits = {0.0f, std::log(3.0f)};  // 1/4, 3/4 at temperature 1
  EXPECT_EQ(sample_token(logits, 1, 0.2), 0);
  EXPECT_EQ(sample_token(logits, 0.5, 0.2), 1);  // 1/10, 9/10
  EXPECT_EQ(sample_token(logits, 1, 0.3), 1);
  EXPECT_EQ(sample_token(logits, 100, 0.49), 0);  // almost even
}

TEST(SampleToken, NeverPicksAnImpossibleToken) {
  // Far below the peak the exponential is zero.
  for (size_t likely : {0, 2, 4}) {
    Logits logits(5, -30000.0f);
    logits[likely] = 0;
    for (double uniform : {0.0, 0x1p-53, 0.5, kAlmostOne})
      EXPECT_EQ(sample_token(logits, 1, uniform), static_cast<Token>(likely));
    for (double temperature : {1e-300, 0.01, 0.8})
      EXPECT_EQ(sample_token(logits, temperature, 0.5), static_cast<Token>(likely));
  }
  EXPECT_EQ(sample_token(Logits{-kInfinity, 1.0f, -kInfinity}, 1, kAlmostOne), 1);
}

TEST(SampleToken, TemperatureZeroTakesTheFirstOfTheLikeliest) {
  const Logits logits = {-1.0f, 7.0f, 2.0f, 7.0f};
  for (double uniform : {0.0, 0.9, kAlmostOne}) EXPECT_EQ(sample_token(logits, 0, uniform), 1);
  EXPECT_EQ(sample_token(Logits{-2.0f}, 0, 0.5), 0);
}

TEST(SampleToken, OneTokenIsAlwaysThatToken) {
  for (double uniform : {0.0, kAlmostOne}) EXPECT_EQ(sample_token(Logits{12.0f}, 1, uniform), 0);
}

TEST(SampleToken, LogitsThatAreNotNumbersAreAnError) {
  for (const Logits& logits : {Logits{kNaN, 0, 0}, Logits{0, kNaN, 0}, Logits{0, 0, kNaN}, Logits{0, kInfinity, 0},
                               Logits{-kInfinity, -kInfinity}})
    for (double temperature : {0.0, 1.0})
      expect_error<Error>([&] { sample_token(logits, temperature, 0.5); }, {"logits are not finite"});
}

TEST(SampleToken, FrequenciesFollowTheProbabilities) {
  const Logits logits = {0.0f, 1.0f, 2.0f, -1.0f, 0.5f};
  constexpr int kDraws = 20'000;
  std::vector<int> counts(logits.size());
  for (int i = 0; i < kDraws; ++i)
    ++counts[static_cast<size_t>(sample_token(logits, 0.8, uniform_at(5, 0, static_cast<uint64_t>(i))))];
  double sum = 0;
  for (float logit : logits) sum += std::exp(logit / 0.8);
  for (size_t t = 0; t < logits.size(); ++t) {
    double p = std::exp(logits[t] / 0.8) / sum;
    EXPECT_NEAR(counts[t], p * kDraws, 5 * std::sqrt(p * (1 - p) * kDraws)) << t;
  }
}

TEST(UniformScript, GivesFirstTokensThatAreUniformAndOfTheirSequenceAlone) {
  constexpr int64_t kVocabulary = 29, kSequences = 2900;
  std::vector<int> counts(kVocabulary);
  const TextScript script = uniform_script(kVocabulary, {.sequences = kSequences, .length = 2, .seed = 3});
  const TextScript longer = uniform_script(kVocabulary, {.sequences = kSequences - 1, .length = 5, .seed = 3});
  EXPECT_TRUE(script.never_drawn.empty());
  for (int64_t s = 0; s < kSequences; ++s) {
    const std::span<const Token> given = script.sequences(s, 1);
    ASSERT_GE(given[0], 0);
    ASSERT_LT(given[0], kVocabulary);
    ++counts[static_cast<size_t>(given[0])];
    EXPECT_EQ(given[1], TextScript::kDrawn);
    if (s < kSequences - 1) {
      EXPECT_EQ(given[0], longer.sequences(s, 1)[0]);
    }
  }
  // 100 expected of each, with a standard deviation just below 10.
  for (int count : counts) EXPECT_NEAR(count, 100, 50);
}

}  // namespace
}  // namespace thimble::sample_token_test
