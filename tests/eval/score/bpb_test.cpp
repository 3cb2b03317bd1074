// bpb_test.cpp: bits per byte where it is known in closed form, and the report.
#include "eval/score/bpb.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numbers>

#include "tests/eval/score/fake_scorers.h"
#include "tests/eval/tokenizers/tokenizer_builder.h"

namespace thimble::bpb_test {
namespace {

using namespace thimble::testing;
using ::testing::HasSubstr;
using ::testing::Not;

class Bpb : public ::testing::Test {
 protected:
  // BOS and then "a", " a" in turn: targets of 1 and 2 bytes.
  std::vector<Token> alternating_tokens(size_t count) const {
    std::vector<Token> tokens = {kBosToken};
    while (tokens.size() < count)
      tokens.push_back(static_cast<Token>(kFirstTextToken + (tokens.size() % 2 == 1 ? 0 : 1)));
    return tokens;
  }

  Tokenizer tokenizer_ = byte_fallback_model({{"a"}, {"▁a"}}).tokenizer();
  ByteTable bytes_{tokenizer_};
  int64_t vocab_size_ = bytes_.vocab_size();
  SilentProgress progress_;
};

TEST_F(Bpb, AUniformModelCostsLogVBitsPerToken) {
  UniformScorer scorer(vocab_size_, 8);
  Evaluation result = evaluate(scorer, alternating_tokens(101), bytes_, {.stride = 3}, progress_);
  const BpbReport& report = result.report;
  EXPECT_EQ(report.targets, 100);
  EXPECT_EQ(report.text_bytes, 150);
  EXPECT_NEAR(report.bits_per_token(), std::log2(vocab_size_), 1e-6);
  EXPECT_NEAR(report.bits_per_byte(), std::log2(vocab_size_) * 100 / 150, 1e-6);
  EXPECT_NEAR(report.loss_nats, 100 * std::log(vocab_size_), 1e-4);
  EXPECT_EQ(report.windows, static_cast<int64_t>(result.windows.size()));
  EXPECT_EQ(report.windows, 32);  // 1 + ceil((100 - 8) / 3)
}

TEST_F(Bpb, EachTargetHasTheContextOfItsWindow) {
  ContextScorer scorer(vocab_size_, 6);
  const std::vector<Token> tokens = alternating_tokens(20);
  Evaluation result = evaluate(scorer, tokens, bytes_, {.stride = 2}, progress_);
  for (const Window& window : result.windows)
    for (int64_t target = window.target_begin; target < window.target_end; ++target) {
      Matrix row(1, vocab_size_);
      scorer.log_probabilities(std::span(tokens).subspan(window.first_token, target + 1 - window.first_token), row);
      EXPECT_EQ(result.nll_nats[target], -row(0, tokens[target + 1]));
    }
}

TEST_F(Bpb, TheBatchSizeChangesNoBit) {
  const std::vector<Token> tokens = alternating_tokens(60);
  ContextScorer one(vocab_size_, 7, 1);
  Evaluation expected = evaluate(one, tokens, bytes_, {.stride = 2}, progress_);
  for (int64_t batch : {0, 2, 5, 1000}) {
    ContextScorer scorer(vocab_size_, 7, batch);
    Evaluation result = evaluate(scorer, tokens, bytes_, {.stride = 2}, progress_);
    EXPECT_EQ(result.nll_nats, expected.nll_nats);
    EXPECT_EQ(result.report.loss_nats, expected.report.loss_nats);
  }
}

TEST_F(Bpb, FirstBatchesAreSmall) {
  ContextScorer scorer(vocab_size_, 7, 128);
  std::vector<size_t> counts;
  scorer.spoil_score = [&](std::span<const ScoreWindow> windows, const ScoreWindow& window, size_t target) {
    if (&window == windows.data() && target == 0) counts.push_back(windows.size());
    return 0.0F;
  };
  const Evaluation result = evaluate(scorer, alternating_tokens(607), bytes_, {.stride = 2}, progress_);
  EXPECT_EQ(counts, (std::vector<size_t>{2, 8, 32, 128, 128, 3}));
  EXPECT_EQ(result.report.windows, 301);
}

TEST_F(Bpb, SumsAreFloat64) {
  // In float32, 2^24 + 1 + 1 + ... would stay 2^24.
  std::vector<float> nll(101, 1.0F);
  nll[0] = 16777216.0F;
  EXPECT_EQ(total_loss_nats(nll), 16777316.0);
}

TEST_F(Bpb, ASubsetIsCalledASubsetEverywhere) {
  UniformScorer scorer(vocab_size_, 8);
  const std::vector<Token> tokens = alternating_tokens(2001);
  BpbReport part = evaluate(scorer, tokens, bytes_, {.stride = 4, .max_targets = 1999}, progress_).report;
  EXPECT_TRUE(part.is_subset());
  EXPECT_THAT(scored_text(part), HasSubstr("first 1,999 of 2,000 targets (subset)"));
  Json json = to_json(part);
  EXPECT_EQ(json["scope"], "first 1,999 of 2,000 targets (subset)");
  EXPECT_EQ(json["is_subset"], true);
  EXPECT_EQ(json["targets"], 1999);
  EXPECT_EQ(json["total_targets"], 2000);
  EXPECT_EQ(part.text_bytes, 1000 + 999 * 2);
}

TEST_F(Bpb, TheWholeIsNotCalledASubset) {
  UniformScorer scorer(vocab_size_, 8);
  const std::vector<Token> tokens = alternating_tokens(2001);
  for (std::optional<int64_t> limit :
       {std::optional<int64_t>(), std::optional<int64_t>(2000), std::optional<int64_t>(9999)}) {
    BpbReport whole = evaluate(scorer, tokens, bytes_, {.stride = 4, .max_targets = limit}, progress_).report;
    EXPECT_FALSE(whole.is_subset());
    EXPECT_THAT(scored_text(whole), AllOf(HasSubstr("all 2,000 targets"), Not(HasSubstr("subset"))));
    EXPECT_EQ(to_json(whole)["is_subset"], false);
  }
}

TEST_F(Bpb, ASingleTargetIsNotCalledAllTargets) {
  UniformScorer scorer(vocab_size_, 8);
  EXPECT_THAT(scored_text(evaluate(scorer, alternating_tokens(2), bytes_, {.stride = 4}, progress_).report),
              ::testing::StartsWith("the only target, "));
}

TEST_F(Bpb, GapsHaveStandardErrorsWhereTheTextIsLongEnough) {
  const std::vector<Token> tokens = alternating_tokens(kLeastBlocks * kLeastBlockTargets + 1);
  UniformScorer uniform(vocab_size_, 8);
  ContextScorer other(vocab_size_, 8);
  auto report_of = [&](Scorer& scorer, std::optional<int64_t> limit) {
    return evaluate(scorer, tokens, bytes_, {.stride = 8, .max_targets = limit}, progress_).report;
  };
  const BpbReport first = report_of(uniform, {}), second = report_of(other, {});
  EXPECT_EQ(to_json(first)["blocks"], kLeastBlocks);
  const BpbGap gap = gap_between(first, second), none = gap_between(first, first);
  EXPECT_EQ(gap.bits_per_byte, second.bits_per_byte() - first.bits_per_byte());
  ASSERT_TRUE(gap.standard_error);
  EXPECT_GT(*gap.standard_error, 0);
  EXPECT_EQ(to_json(gap)["gap_standard_error"], *gap.standard_error);
  EXPECT_THAT(to_text(gap), HasSubstr(" +- " + standard_error_text(gap.standard_error)));
  EXPECT_EQ(to_text(none), "+0.000000 +- 0.000000");
  EXPECT_EQ(none.standard_error, 0);

  const int64_t too_few = kLeastBlocks * kLeastBlockTargets - 1;
  const BpbGap unknown = gap_between(report_of(uniform, too_few), report_of(other, too_few));
  EXPECT_FALSE(unknown.standard_error);
  EXPECT_TRUE(to_json(unknown)["gap_standard_error"].is_null());
  EXPECT_THAT(to_text(unknown), Not(HasSubstr("+-")));
  EXPECT_EQ(standard_error_text(unknown.standard_error), "-");
}

TEST_F(Bpb, JsonHoldsTheNumbersOfTheReport) {
  BpbReport report{.loss_nats = 1000 * std::numbers::ln2,
                   .targets = 500,
                   .total_targets = 500,
                   .text_bytes = 800,
                   .context = 16,
                   .stride = 4,
                   .windows = 122,
                   .seconds = 1.5};
  Json json = to_json(report);
  EXPECT_DOUBLE_EQ(json["bits_per_byte"].get<double>(), 1.25);
  EXPECT_DOUBLE_EQ(json["bits_per_token"].get<double>(), 2);
  EXPECT_DOUBLE_EQ(json["mean_nll_nats"].get<double>(), 2 * std::numbers::ln2);
  EXPECT_DOUBLE_EQ(json["loss_nats"].get<double>(), 1000 * std::numbers::ln2);
  EXPECT_EQ(json["text_bytes"], 800);
  EXPECT_EQ(json["context"], 16);
  EXPECT_EQ(json["stride"], 4);
  EXPECT_EQ(json["windows"], 122);
  EXPECT_EQ(json["seconds"], 1.5);
  EXPECT_EQ(json["blocks"], 0);
  EXPECT_EQ(scored_text(report), "all 500 targets, context 16, stride 4");
}

TEST_F(Bpb, ScoresThatAreNotLikelihoodsAreErrorsNamingTheToken) {
  const std::vector<Token> tokens = alternating_tokens(30);
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                    -std::numeric_limits<float>::infinity(), -100.0F}) {
    ContextScorer scorer(vocab_size_, 8);
    int target = 0;  // windows are scored in order
    scorer.spoil_score = [&](auto, const ScoreWindow&, size_t) { return target++ == 17 ? bad : 0.0F; };
    try {
      evaluate(scorer, tokens, bytes_, {.stride = 4}, progress_);
      FAIL() << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadInput);
      EXPECT_THAT(error.what(), HasSubstr("position 18"));
    }
  }
}

TEST_F(Bpb, ImpossibleRequestsAreUsageErrors) {
  UniformScorer scorer(vocab_size_, 8);
  const std::vector<Token> tokens = alternating_tokens(10);
  EXPECT_THROW(evaluate(scorer, std::span(tokens).first(0), bytes_, {.stride = 4}, progress_), UsageError);
  EXPECT_THROW(evaluate(scorer, std::span(tokens).first(1), bytes_, {.stride = 4}, progress_), UsageError);
  EXPECT_THROW(evaluate(scorer, tokens, bytes_, {.stride = 0}, progress_), UsageError);
  EXPECT_THROW(evaluate(scorer, tokens, bytes_, {.stride = 9}, progress_), UsageError);
  EXPECT_THROW(evaluate(scorer, tokens, bytes_, {.stride = 4, .max_targets = 0}, progress_), UsageError);
  EXPECT_THROW(evaluate(scorer, tokens, bytes_, {.stride = 4, .max_targets = -1}, progress_), UsageError);
  UniformScorer other(vocab_size_ + 1, 8);
  EXPECT_THROW(evaluate(other, tokens, bytes_, {.stride = 4}, progress_), UsageError);
  const std::vector<Token> no_text(10, kBosToken);
  EXPECT_THROW(evaluate(scorer, no_text, bytes_, {.stride = 4}, progress_), UsageError);
  const std::vector<Token> outside = {kBosToken, kFirstTextToken, static_cast<Token>(vocab_size_)};
  EXPECT_THROW(evaluate(scorer, outside, bytes_, {.stride = 4}, progress_), UsageError);
}

TEST_F(Bpb, ProgressCountsEveryWindow) {
  class Counter final : public Progress {
   public:
    void begin(std::string_view, int64_t total, std::string_view) override { total_ = total; }
    void advance(int64_t units) override { done_ += units; }
    void end() override { ended_ = true; }
    int64_t total_ = 0, done_ = 0;
    bool ended_ = false;
  } counter;
  ContextScorer scorer(vocab_size_, 8, 3);
  BpbReport report = evaluate(scorer, alternating_tokens(100), bytes_, {.stride = 4}, counter).report;
  EXPECT_EQ(counter.total_, report.windows);
  EXPECT_EQ(counter.done_, report.windows);
  EXPECT_TRUE(counter.ended_);
}

}  // namespace
}  // namespace thimble::bpb_test
