// generation_test.cpp: calibration sets and continuations by models of every family: what decides the tokens, and what
// must not. Run once per instruction set (see CMakeLists.txt).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "runtime/base/parallel.h"
#include "runtime/base/random.h"
#include "runtime/cpu/cpu_models.h"
#include "runtime/cpu/cpu_pass.h"
#include "runtime/cpu/gemm.h"
#include "runtime/ops/ops.h"
#include "tests/runtime/families/family_models.h"
#include "tests/runtime/families/golf/random_model.h"

namespace thimble::generation_test {
namespace {

// Counts what generation reports.
struct Counter final : Progress {
  void begin(std::string_view, int64_t, std::string_view) override {}
  void advance(int64_t units) override { advanced += units; }
  void end() override {}
  int64_t advanced = 0;
};

class Generation : public ::testing::TestWithParam<FamilyCase> {
 protected:
  TokenSequences calibrate(const CalibrationOptions& options, int64_t first, int64_t count,
                           Numerics numerics = Numerics::kFp32) const {
    Counter progress;
    const auto generator = make_cpu_generator(model_.weights, numerics, options.length);
    TokenSequences found = generator->calibration(uniform_script(model_.vocabulary(), options), first, count, progress);
    EXPECT_EQ(progress.advanced, count * options.length);
    EXPECT_EQ(found.count, count);
    EXPECT_EQ(found.length, options.length);
    return found;
  }

  std::vector<Token> continued(const std::vector<Token>& prompt, int64_t count, double temperature, uint64_t seed,
                               Numerics numerics = Numerics::kFp32) const {
    std::vector<Token> tokens;
    const int64_t context = static_cast<int64_t>(prompt.size()) + count;
    make_cpu_generator(model_.weights, numerics, context)
        ->text(prompt, {.most_new_tokens = count, .temperature = temperature, .seed = seed}, [&](Token token) {
          tokens.push_back(token);
          return true;
        });
    return tokens;
  }

  // After every token of one window.
  Matrix window_logits(std::span<const Token> tokens, Numerics numerics = Numerics::kFp32) const {
    const NumericPolicy policy = numeric_policy(numerics);
    const auto rounded = rounded_weights(model_.weights, policy);
    CpuPass pass(*rounded, static_cast<int64_t>(tokens.size()), policy);
    const ConstMatrixView hidden = pass.run(window_batch(tokens));
    Matrix logits(hidden.rows, model_.vocabulary());
    pass.logits(hidden, logits);
    return logits;
  }

  // What rounded keys and values (kCalibrationCache) move probabilities by, at most.
  static constexpr double kCacheError = 0.01;

  // How many of tokens [first, ..) are those that the window's logits give for their uniform numbers, or for some
  // within `slack` of them.
  int64_t drawn(std::span<const Token> tokens, size_t first, double temperature,
                const std::function<double(size_t)>& uniform, double slack, Numerics numerics = Numerics::kFp32) const {
    const Matrix logits = window_logits(tokens, numerics);
    int64_t equal = 0;
    for (size_t p = first; p < tokens.size(); ++p) {
      const std::span<const float> row(logits.row(static_cast<int64_t>(p) - 1), static_cast<size_t>(logits.cols()));
      const double low = std::max(0.0, uniform(p) - slack), high = std::min(1 - 1e-9, uniform(p) + slack);
      equal += tokens[p] >= sample_token(row, temperature, low) && tokens[p] <= sample_token(row, temperature, high);
    }
    return equal;
  }

  // The likeliest token, or one within what rounded keys and values make of a tie.
  static bool is_likeliest(const Matrix& logits, int64_t row, Token token) {
    const std::span<const float> of_row(logits.row(row), static_cast<size_t>(logits.cols()));
    const float most = *std::ranges::max_element(of_row);
    return of_row[static_cast<size_t>(token)] >= most - 0.02f * std::abs(most);
  }

  const FamilyModel model_ = GetParam().make();
  const CalibrationOptions options_{4, 40, 0.8, 11};
};
INSTANTIATE_TEST_SUITE_P(Families, Generation, ::testing::ValuesIn(undecided_cases()),
                         [](const auto& test) { return test.param.name; });

TEST_P(Generation, TheSameSeedGivesTheSameTokens) {
  TokenSequences all = calibrate(options_, 0, 4);
  EXPECT_EQ(calibrate(options_, 0, 4).tokens, all.tokens);
  EXPECT_TRUE(std::ranges::all_of(all.tokens, [&](Token token) { return token >= 0 && token < model_.vocabulary(); }));
}

TEST_P(Generation, SeedsAndSequencesDiffer) {
  TokenSequences all = calibrate(options_, 0, 4);
  for (int64_t a = 0; a < 4; ++a)
    for (int64_t b = 0; b < a; ++b) EXPECT_FALSE(std::ranges::equal(all.sequence(a), all.sequence(b)));
  CalibrationOptions other = options_;
  other.seed = 12;
  EXPECT_NE(calibrate(other, 0, 4).tokens, all.tokens);
}

// Each draw depends on the seed, the sequence's number and the position alone, and no logit on the rest of the batch
// (gemm_test.cpp: Gemm.RowsOfASmallProductDoNotDependOnTheOthers). More sequences than one batch may have, too.
TEST_P(Generation, SplittingTheSetChangesNoToken) {
  const int64_t sequences = kMostFewRows + 2;
  CalibrationOptions options{sequences, 12, 0.8, 11};
  TokenSequences all = calibrate(options, 0, sequences);
  for (int64_t batch : {1, 2, 3, 8, 65, 129}) {
    std::vector<Token> tokens;
    for (int64_t first = 0; first < sequences; first += batch) {
      TokenSequences part = calibrate(options, first, std::min(batch, sequences - first));
      tokens.insert(tokens.end(), part.tokens.begin(), part.tokens.end());
    }
    EXPECT_EQ(tokens, all.tokens) << batch;
  }
}

TEST_P(Generation, ThreadsChangeNoToken) {
  TokenSequences expected = calibrate(options_, 0, 4);
  for (int threads : {1, 2, 5}) {
    ThreadLimit limit(threads);
    EXPECT_EQ(calibrate(options_, 0, 4).tokens, expected.tokens) << threads;
  }
}

TEST_P(Generation, FirstTokensAreUniform) {
  constexpr int64_t kSequences = 2900;
  TokenSequences found = calibrate({kSequences, 1, 0.8, 3}, 0, kSequences);
  std::vector<int> counts(static_cast<size_t>(model_.vocabulary()));
  for (Token token : found.tokens) ++counts[static_cast<size_t>(token)];
  // 100 expected of each of the 29 tokens, with a standard deviation just below 10.
  for (int count : counts) EXPECT_NEAR(count, 100, 50);
}

// Replays each sequence as one window: every token is the one that the window's logits give for its uniform number.
TEST_P(Generation, TokensAreDrawnFromTheWindowsLogits) {
  TokenSequences all = calibrate(options_, 0, 4);
  for (int64_t s = 0; s < 4; ++s)
    EXPECT_EQ(drawn(
                  all.sequence(s), 1, options_.temperature,
                  [&](size_t p) { return uniform_at(options_.seed, static_cast<uint64_t>(s), p); }, kCacheError),
              options_.length - 1);
}

// In every mode. Cached passes sum in another order than windows: what falls to the other side of a rounding may, now
// and then, move a draw.
TEST_P(Generation, EveryModeDrawsFromItsOwnLogits) {
  for (Numerics numerics : kAllNumerics) {
    SCOPED_TRACE(numerics_name(numerics));
    const TokenSequences all = calibrate(options_, 0, 4, numerics);
    EXPECT_EQ(calibrate(options_, 0, 4, numerics).tokens, all.tokens);
    int64_t equal = 0;
    for (int64_t s = 0; s < 4; ++s)
      equal += drawn(
          all.sequence(s), 1, options_.temperature,
          [&](size_t p) { return uniform_at(options_.seed, static_cast<uint64_t>(s), p); }, kCacheError, numerics);
    EXPECT_GE(equal, 4 * (options_.length - 1) * 95 / 100);
  }
}

TEST_P(Generation, TemperatureZeroIsGreedy) {
  CalibrationOptions greedy{2, 20, 0, 1};
  TokenSequences all = calibrate(greedy, 0, 2);
  for (int64_t s = 0; s < 2; ++s) {
    const Matrix logits = window_logits(all.sequence(s));
    for (int64_t p = 0; p + 1 < greedy.length; ++p)
      ASSERT_TRUE(is_likeliest(logits, p, all.sequence(s)[static_cast<size_t>(p + 1)])) << p;
  }
}

// What is given stays and is read as what was drawn is; what is never drawn, though it be likeliest, is not.
TEST_P(Generation, KeepsToItsScript) {
  const CalibrationOptions greedy{3, 20, 0, 1};
  TextScript script = uniform_script(model_.vocabulary(), greedy);
  const TokenSequences free = calibrate(greedy, 0, 3);
  for (size_t p : {3, 4, 11})
    for (int64_t s : {0, 2}) script.given[static_cast<size_t>(s * 20) + p] = static_cast<Token>(p);
  script.never_drawn = {free.sequence(1)[1], free.sequence(1)[1] + 1};
  if (script.never_drawn[1] == model_.vocabulary()) script.never_drawn = {0, free.sequence(1)[1]};
  Counter progress;
  const TokenSequences found =
      make_cpu_generator(model_.weights, Numerics::kFp32, 20)->calibration(script, 0, 3, progress);
  for (int64_t s = 0; s < 3; ++s) {
    Matrix logits = window_logits(found.sequence(s));
    for (int64_t p = 0; p < 20; ++p) {
      const Token given = script.sequences(s, 1)[static_cast<size_t>(p)];
      const Token token = found.sequence(s)[static_cast<size_t>(p)];
      if (given != TextScript::kDrawn) {
        EXPECT_EQ(token, given);
        continue;
      }
      for (Token never : script.never_drawn) logits(p - 1, never) = -std::numeric_limits<float>::infinity();
      EXPECT_TRUE(is_likeliest(logits, p - 1, token)) << p;
    }
  }
  EXPECT_NE(found.sequence(1)[1], free.sequence(1)[1]);
}

using Continuation = Generation;
INSTANTIATE_TEST_SUITE_P(Families, Continuation, ::testing::ValuesIn(undecided_cases()),
                         [](const auto& test) { return test.param.name; });

TEST_P(Continuation, AddsAsManyTokensAsAsked) {
  for (int64_t count : {0, 1, 2, 17}) EXPECT_EQ(continued({3}, count, 1, 5).size(), static_cast<size_t>(count));
}

TEST_P(Continuation, SeedsDecideTheTokens) {
  const std::vector<Token> prompt = {1, 2, 3};
  EXPECT_EQ(continued(prompt, 30, 1, 5), continued(prompt, 30, 1, 5));
  EXPECT_NE(continued(prompt, 30, 1, 5), continued(prompt, 30, 1, 6));
  EXPECT_EQ(continued(prompt, 30, 0, 5), continued(prompt, 30, 0, 6));
}

TEST_P(Continuation, TokensAreDrawnFromTheLogitsOfPromptAndText) {
  for (const std::vector<Token>& prompt : {std::vector<Token>{4}, {1, 2, 3, 2, 1}}) {
    std::vector<Token> text = prompt;
    for (Token token : continued(prompt, 20, 0.7, 9)) text.push_back(token);
    EXPECT_EQ(drawn(
                  text, prompt.size(), 0.7, [&](size_t p) { return uniform_at(9, 0, p - prompt.size()); }, 0),
              20);
  }
}

TEST_P(Continuation, StopsWhenToldTo) {
  int calls = 0;
  make_cpu_generator(model_.weights, Numerics::kFp32, 40)
      ->text(std::vector<Token>{1}, {.most_new_tokens = 39, .temperature = 1, .seed = 2},
             [&](Token) { return ++calls < 4; });
  EXPECT_EQ(calls, 4);
}

TEST(CalibrationBatch, SpreadsSequencesEvenlyWithinTheCacheLimit) {
  GolfConfig config = small_golf_config();
  const Network network = golf_network(config);
  auto fitting = static_cast<int64_t>(kMaxCacheBytes / CpuCache::bytes_per_sequence(network, 2048, kCalibrationCache));
  auto batch = [&](int64_t sequences) { return calibration_batch(network, {sequences, 2048, 0.8, 0}); };
  EXPECT_EQ(batch(1), 1);
  EXPECT_EQ(batch(fitting), fitting);
  EXPECT_EQ(batch(fitting + 1), (fitting + 2) / 2);
  // A model too wide for even one sequence still runs one at a time.
  config.model_dim = 1 << 20;
  EXPECT_EQ(calibration_batch(golf_network(config), {64, 1 << 20, 0.8, 0}), 1);
}

TEST(CalibrationBatch, OfANetworkWithoutAttentionIsAll) {
  Ops ops({{"table", {9, 4}, Role::kTable}});
  const Value x = ops.gather("table");
  EXPECT_EQ(calibration_batch(std::move(ops).head(x, "table"), {64, 2048, 0.8, 0}), 64);
}

}  // namespace
}  // namespace thimble::generation_test
