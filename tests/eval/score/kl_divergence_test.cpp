// kl_divergence_test.cpp: divergences that are known in closed form, over windows and pieces of them.
#include "eval/score/kl_divergence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numbers>

#include "tests/eval/score/fake_scorers.h"
#include "tests/eval/tokenizers/tokenizer_builder.h"
#include "tests/runtime/base/error_matcher.h"

namespace thimble::kl_divergence_test {
namespace {

using namespace thimble::testing;

// p(v) after inputs[position] as `row` gives them.
class RowScorer final : public FakeScorer {
 public:
  using Row = std::function<float(std::span<const Token> inputs, size_t position, int64_t v)>;
  RowScorer(int64_t vocabulary, Row row) : FakeScorer(vocabulary, 8), row_(std::move(row)) {}
  void score(std::span<const ScoreWindow>, std::span<float>) override { FAIL() << "asked for more than distributions"; }
  using Scorer::log_probabilities;
  void log_probabilities(std::span<const Token> inputs, int64_t targets, int64_t first, MatrixView out) override {
    const size_t begin = inputs.size() - static_cast<size_t>(targets - first);
    for (int64_t r = 0; r < out.rows; ++r)
      for (int64_t v = 0; v < out.cols; ++v) out.row(r)[v] = std::log(row_(inputs, begin + static_cast<size_t>(r), v));
  }

 private:
  Row row_;
};

std::vector<Token> counting(size_t count) {
  std::vector<Token> tokens;
  for (size_t i = 0; i < count; ++i) tokens.push_back(static_cast<Token>(i % 4));
  return tokens;
}

Divergences between(Scorer& first, Scorer& second, const std::vector<Token>& tokens) {
  SilentProgress silent;
  return divergences(first, second, tokens, plan_windows(static_cast<int64_t>(tokens.size()) - 1, 8, 3), silent);
}

// p = (1/2, 1/4, 1/8, 1/8) beside the uniform q: ln 4 - 1.75 ln 2 nats.
TEST(Divergence, FromTheUniformDistribution) {
  RowScorer halves(4, [](auto, size_t, int64_t v) { return v == 3 ? 0.125f : std::ldexp(0.5f, -static_cast<int>(v)); });
  UniformScorer uniform(4, 8);
  const Divergences found = between(halves, uniform, counting(21));
  ASSERT_EQ(found.nats.size(), 20);
  for (float nats : found.nats) EXPECT_NEAR(nats, 0.25 * std::numbers::ln2, 1e-6);
  // The other way round: ln 1/4 less the mean of the logarithms.
  for (float nats : between(uniform, halves, counting(21)).nats) EXPECT_NEAR(nats, 0.25 * std::numbers::ln2, 1e-6);
  for (float nats : between(halves, halves, counting(21)).nats) EXPECT_EQ(nats, 0);
}

// q(0) = 1/2 - epsilon of the token that was read, p = 1/2: each target has a divergence of its own, in its place.
TEST(Divergence, OfEachTargetInItsPlace) {
  RowScorer first(2, [](auto, size_t, int64_t) { return 0.5f; });
  RowScorer second(2, [](std::span<const Token> inputs, size_t position, int64_t v) {
    const float p = 0.5f - 0.1f * static_cast<float>(inputs[position]);
    return v == 0 ? p : 1 - p;
  });
  const std::vector<Token> tokens = counting(30);
  const Divergences found = between(first, second, tokens);
  for (size_t i = 0; i < found.nats.size(); ++i) {
    const double q = 0.5 - 0.1 * tokens[i];
    EXPECT_NEAR(found.nats[i], 0.5 * std::log(0.5 / q) + 0.5 * std::log(0.5 / (1 - q)), 1e-6) << i;
    EXPECT_EQ(found.same_top[i], tokens[i] == 0 ? 1 : 0) << i;
  }
}

// Rows of windows come in pieces of at most 2^26 logits.
TEST(Divergence, OfLargeVocabularies) {
  constexpr int64_t kVocabulary = (int64_t{1} << 26) / 64;
  class Steps final : public FakeScorer {
   public:
    Steps() : FakeScorer(kVocabulary, 100) {}
    void score(std::span<const ScoreWindow>, std::span<float>) override {}
    using Scorer::log_probabilities;
    // All on one of 2^k tokens, k by the position.
    void log_probabilities(std::span<const Token> inputs, int64_t targets, int64_t first, MatrixView out) override {
      EXPECT_LE(out.rows, 64);
      for (int64_t r = 0; r < out.rows; ++r) {
        const int64_t position = static_cast<int64_t>(inputs.size()) - targets + first + r;
        std::fill_n(out.row(r), out.cols, -std::numeric_limits<float>::infinity());
        const int64_t among = int64_t{1} << (position % 20);
        std::fill_n(out.row(r), among, -std::log(static_cast<float>(among)));
      }
    }
  } steps;
  UniformScorer uniform(kVocabulary, 100);
  SilentProgress silent;
  const std::vector<Token> tokens = counting(71);
  const Divergences found = divergences(steps, uniform, tokens, plan_windows(70, 100, 100), silent);
  for (size_t i = 0; i < found.nats.size(); ++i)
    EXPECT_NEAR(found.nats[i], static_cast<double>(20 - i % 20) * std::numbers::ln2, 1e-4) << i;
}

TEST(Divergence, WhatIsRuledOutIsAnError) {
  RowScorer possible(2, [](auto, size_t, int64_t) { return 0.5f; });
  RowScorer certain(2, [](auto, size_t position, int64_t v) { return position == 5 ? float(v) : 0.5f; });
  expect_error<Error>([&] { between(possible, certain, counting(9)); }, {"position 6", "inf"});
  for (float nats : between(certain, possible, counting(9)).nats) EXPECT_GE(nats, 0);
}

TEST(Divergence, OfTwoVocabulariesIsAnError) {
  UniformScorer first(4, 8), second(5, 8);
  expect_error<UsageError>([&] { between(first, second, counting(9)); }, {"one vocabulary", "4", "5"});
}

TEST(Divergence, Summary) {
  const Tokenizer tokenizer = byte_fallback_model({{"a"}, {"▁a"}}).tokenizer();
  const ByteTable bytes(tokenizer);
  Divergences found;
  std::vector<Token> tokens = {kBosToken};
  for (int i = 0; i < 8192; ++i) {
    tokens.push_back(kFirstTextToken);  // a byte each
    found.nats.push_back(i == 77 ? 9 : static_cast<float>(i % 100 == 99) + 0.5f);
    found.same_top.push_back(i % 4 != 0);
  }
  const DivergenceReport report = summarize(found, tokens, bytes, 64);
  const double sum = 8192 * 0.5 + 81 + 8.5;
  EXPECT_EQ(report.targets, 8192);
  EXPECT_DOUBLE_EQ(report.mean_nats, sum / 8192);
  EXPECT_DOUBLE_EQ(report.bits_per_byte, sum / std::numbers::ln2 / 8192);
  EXPECT_EQ(report.percentile_99_nats, 1.5);  // 82 of 8192 are above 0.5
  EXPECT_EQ(report.largest_nats, 9);
  EXPECT_EQ(report.same_top, 0.75);
  ASSERT_TRUE(report.standard_error.has_value());
  EXPECT_GT(*report.standard_error, 0);
  const Json json = to_json(report);
  EXPECT_EQ(json.at("mean_nats"), report.mean_nats);
  EXPECT_EQ(json.at("standard_error"), *report.standard_error);
  found.nats.resize(20);
  found.same_top.resize(20);
  EXPECT_TRUE(to_json(summarize(found, std::span(tokens).first(21), bytes, 64)).at("standard_error").is_null());
}

}  // namespace
}  // namespace thimble::kl_divergence_test
