// generate_test.cpp: sampling one token, calibration sets and continuations: what decides the tokens, and what must
// not.
#include "runtime/cpu/generate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/base/parallel.h"
#include "runtime/cpu/gemm.h"
#include "runtime/cpu/window_scores.h"
#include "tests/runtime/base/error_matcher.h"
#include "tests/runtime/families/golf/random_model.h"

namespace thimble {
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
    for (double uniform : {0.0, 0x1p-53, 0.5, kAlmostOne}) EXPECT_EQ(sample_token(logits, 1, uniform), likely);
    for (double temperature : {1e-300, 0.01, 0.8}) EXPECT_EQ(sample_token(logits, temperature, 0.5), likely);
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
  for (int i = 0; i < kDraws; ++i) ++counts[sample_token(logits, 0.8, uniform_at(5, 0, static_cast<uint64_t>(i)))];
  double sum = 0;
  for (float logit : logits) sum += std::exp(logit / 0.8);
  for (size_t t = 0; t < logits.size(); ++t) {
    double p = std::exp(logits[t] / 0.8) / sum;
    EXPECT_NEAR(counts[t], p * kDraws, 5 * std::sqrt(p * (1 - p) * kDraws)) << t;
  }
}

TEST(CalibrationBatch, SpreadsSequencesEvenlyWithinTheCacheLimit) {
  ModelConfig config = small_golf_config();
  uint64_t per_sequence = KeyValueCache::bytes_per_sequence(cache_shape(config), 2048);
  auto fitting = static_cast<int64_t>(kMaxCacheBytes / per_sequence);
  auto batch = [&](int64_t sequences) { return calibration_batch(cache_shape(config), {sequences, 2048, 0.8, 0}); };
  EXPECT_EQ(batch(1), 1);
  EXPECT_EQ(batch(fitting), fitting);
  EXPECT_EQ(batch(fitting + 1), (fitting + 2) / 2);
  // A model too wide for even one sequence still runs one at a time.
  config.model_dim = 1 << 20;
  EXPECT_EQ(calibration_batch(cache_shape(config), {64, 1 << 20, 0.8, 0}), 1);
}

// Counts what generation reports.
struct Counter final : Progress {
  void begin(std::string_view, int64_t, std::string_view) override {}
  void advance(int64_t units) override { advanced += units; }
  void end() override {}
  int64_t advanced = 0;
};

class Generation : public testing::Test {
 protected:
  TokenSequences calibrate(const CalibrationOptions& options, int64_t first, int64_t count) {
    Counter progress;
    ForwardPass forward(model_, *backend_, options.length);
    TokenSequences found = generate_calibration(forward, options, first, count, progress);
    EXPECT_EQ(progress.advanced, count * options.length);
    EXPECT_EQ(found.count, count);
    EXPECT_EQ(found.length, options.length);
    return found;
  }

  // A tight cap keeps the random model's predictions from being certain, so that draws matter.
  static ModelConfig undecided_config() {
    ModelConfig config = small_golf_config();
    config.logit_softcap = 2;
    return config;
  }

  ModelConfig config_ = undecided_config();
  Model model_ = random_golf_model(config_, 6);
  std::unique_ptr<Backend> backend_ = make_cpu_backend();
  CalibrationOptions options_{4, 40, 0.8, 11};
};

TEST_F(Generation, TheSameSeedGivesTheSameTokens) {
  TokenSequences all = calibrate(options_, 0, 4);
  EXPECT_EQ(calibrate(options_, 0, 4).tokens, all.tokens);
  EXPECT_TRUE(std::ranges::all_of(all.tokens, [&](uint16_t token) { return token < config_.vocab_size; }));
}

TEST_F(Generation, SeedsAndSequencesDiffer) {
  TokenSequences all = calibrate(options_, 0, 4);
  for (int64_t a = 0; a < 4; ++a)
    for (int64_t b = 0; b < a; ++b) EXPECT_FALSE(std::ranges::equal(all.sequence(a), all.sequence(b)));
  CalibrationOptions other = options_;
  other.seed = 12;
  EXPECT_NE(calibrate(other, 0, 4).tokens, all.tokens);
}

// Each draw depends on the seed, the sequence's number and the position alone, and no logit on the rest of the batch
// (gemm_test.cpp: Gemm.RowsOfASmallProductDoNotDependOnTheOthers). More sequences than one batch may have, too.
TEST_F(Generation, SplittingTheSetChangesNoToken) {
  const int64_t sequences = kMostFewRows + 2;
  CalibrationOptions options{sequences, 12, 0.8, 11};
  TokenSequences all = calibrate(options, 0, sequences);
  for (int64_t batch : {1, 2, 3, 8, 65, 129}) {
    std::vector<uint16_t> tokens;
    for (int64_t first = 0; first < sequences; first += batch) {
      TokenSequences part = calibrate(options, first, std::min(batch, sequences - first));
      tokens.insert(tokens.end(), part.tokens.begin(), part.tokens.end());
    }
    EXPECT_EQ(tokens, all.tokens) << batch;
  }
}

TEST_F(Generation, ThreadsChangeNoToken) {
  TokenSequences expected = calibrate(options_, 0, 4);
  for (int threads : {1, 2, 5}) {
    ThreadLimit limit(threads);
    EXPECT_EQ(calibrate(options_, 0, 4).tokens, expected.tokens) << threads;
  }
}

TEST_F(Generation, FirstTokensAreUniform) {
  constexpr int64_t kSequences = 2900;
  TokenSequences found = calibrate({kSequences, 1, 0.8, 3}, 0, kSequences);
  std::vector<int> counts(static_cast<size_t>(config_.vocab_size));
  for (uint16_t token : found.tokens) ++counts[token];
  // 100 expected of each of the 29 tokens, with a standard deviation just below 10.
  for (int count : counts) EXPECT_NEAR(count, 100, 50);
}

// Replays each sequence as one window: every token is the one that the window's logits give for its uniform number.
TEST_F(Generation, TokensAreDrawnFromTheWindowsLogits) {
  TokenSequences all = calibrate(options_, 0, 4);
  WindowScorer scorer(model_, *backend_, options_.length);
  for (int64_t s = 0; s < 4; ++s) {
    ConstMatrixView logits = scorer.logits(all.sequence(s), 0);
    for (int64_t p = 0; p + 1 < options_.length; ++p) {
      double uniform = uniform_at(options_.seed, static_cast<uint64_t>(s), static_cast<uint64_t>(p + 1));
      std::span<const float> row(logits.row(p), static_cast<size_t>(logits.cols));
      ASSERT_EQ(all.sequence(s)[static_cast<size_t>(p + 1)], sample_token(row, options_.temperature, uniform));
    }
  }
}

TEST_F(Generation, TemperatureZeroIsGreedy) {
  CalibrationOptions greedy{2, 20, 0, 1};
  TokenSequences all = calibrate(greedy, 0, 2);
  WindowScorer scorer(model_, *backend_, greedy.length);
  for (int64_t s = 0; s < 2; ++s) {
    ConstMatrixView logits = scorer.logits(all.sequence(s), 0);
    for (int64_t p = 0; p + 1 < greedy.length; ++p)
      ASSERT_EQ(all.sequence(s)[static_cast<size_t>(p + 1)],
                std::max_element(logits.row(p), logits.row(p) + logits.cols) - logits.row(p));
  }
}

class Continuation : public Generation {
 protected:
  std::vector<uint16_t> continued(const std::vector<uint16_t>& prompt, int64_t count, double temperature,
                                  uint64_t seed) {
    std::vector<uint16_t> tokens;
    ForwardPass forward(model_, *backend_, static_cast<int64_t>(prompt.size()) + count);
    generate_text(forward, prompt, count, temperature, seed, [&](uint16_t token) {
      tokens.push_back(token);
      return true;
    });
    return tokens;
  }
};

TEST_F(Continuation, AddsAsManyTokensAsAsked) {
  for (int64_t count : {0, 1, 2, 17}) EXPECT_EQ(continued({3}, count, 1, 5).size(), static_cast<size_t>(count));
}

TEST_F(Continuation, SeedsDecideTheTokens) {
  const std::vector<uint16_t> prompt = {1, 2, 3};
  EXPECT_EQ(continued(prompt, 30, 1, 5), continued(prompt, 30, 1, 5));
  EXPECT_NE(continued(prompt, 30, 1, 5), continued(prompt, 30, 1, 6));
  EXPECT_EQ(continued(prompt, 30, 0, 5), continued(prompt, 30, 0, 6));
}

TEST_F(Continuation, TokensAreDrawnFromTheLogitsOfPromptAndText) {
  for (const std::vector<uint16_t>& prompt : {std::vector<uint16_t>{4}, {1, 2, 3, 2, 1}}) {
    std::vector<uint16_t> text = prompt;
    for (uint16_t token : continued(prompt, 20, 0.7, 9)) text.push_back(token);
    WindowScorer scorer(model_, *backend_, static_cast<int64_t>(text.size()));
    ConstMatrixView logits = scorer.logits(text, 0);
    for (size_t i = prompt.size(); i < text.size(); ++i) {
      std::span<const float> row(logits.row(static_cast<int64_t>(i) - 1), static_cast<size_t>(logits.cols));
      EXPECT_EQ(text[i], sample_token(row, 0.7, uniform_at(9, 0, i - prompt.size())));
    }
  }
}

TEST_F(Continuation, StopsWhenToldTo) {
  int calls = 0;
  ForwardPass forward(model_, *backend_, 101);
  generate_text(forward, std::vector<uint16_t>{1}, 100, 1, 2, [&](uint16_t) { return ++calls < 4; });
  EXPECT_EQ(calls, 4);
}

}  // namespace
}  // namespace thimble
