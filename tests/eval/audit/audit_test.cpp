// audit_test.cpp: honest evaluations pass every check; each kind of cheating fails the check meant for it.
#include "eval/audit/audit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "eval/text/text_tokens.h"
#include "eval/text/token_shard.h"
#include "runtime/base/file.h"
#include "tests/eval/score/fake_scorers.h"
#include "tests/eval/tokenizers/tokenizer_builder.h"
#include "tests/support/test_files.h"

namespace thimble::audit_test {
namespace {

using namespace thimble::testing;
using ::testing::HasSubstr;

constexpr int64_t kContext = 12;
constexpr char kText[] = "the the a\nthé 日本 the\n<|doc|>\na a\tthe 😀 the a a a the\n<|doc|>\nthe é the the a a\n";

class Audit : public ::testing::Test {
 protected:
  Evaluation evaluated(Scorer& scorer, std::optional<int64_t> max_targets = {}) {
    return evaluate(scorer, tokens_, ByteTable(tokenizer_), {.stride = 4, .max_targets = max_targets}, progress_);
  }
  AuditReport audited(Scorer& scorer) {
    Evaluation evaluation = evaluated(scorer);
    return audit(scorer, tokens_, tokenizer_, evaluation, SourceText{kText, "text.txt"}, {.samples = 8}, progress_);
  }
  // The checks that a scorer with this fault fails.
  std::vector<std::string> failures(Scorer& scorer) {
    std::vector<std::string> names;
    for (const AuditCheck& check : audited(scorer).checks)
      if (!check.passed) names.push_back(check.name);
    return names;
  }

  Tokenizer tokenizer_ =
      byte_fallback_model(
          {{"▁"}, {"a"}, {"the"}, {"▁the", PieceType::kNormal, 0}, {"é"}, {"▁a", PieceType::kNormal, 0}})
          .tokenizer();
  std::vector<Token> tokens_ = tokens_of_text(tokenizer_, kText, "text.txt");
  int64_t vocab_size_ = tokenizer_.vocab_size();
  SilentProgress progress_;
};

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST_F(Audit, HonestScorersPass) {
  UniformScorer uniform(vocab_size_, kContext);
  EXPECT_THAT(failures(uniform), IsEmpty());
  for (int64_t batch : {1, 3, 100}) {
    ContextScorer scorer(vocab_size_, kContext, batch);
    AuditReport report = audited(scorer);
    EXPECT_TRUE(report.passed()) << to_text(report);
    EXPECT_EQ(report.checks.size(), 10U);
  }
}

TEST_F(Audit, AScoreThatSeesTheNextTokenIsCaught) {
  ContextScorer scorer(vocab_size_, kContext);
  scorer.spoil_score = [](auto, const ScoreWindow& window, size_t i) {
    return i + 1 < window.targets.size() ? static_cast<float>(window.targets[i + 1]) * 1e-6F : 0.0F;
  };
  EXPECT_THAT(failures(scorer), ElementsAre("causality"));
}

TEST_F(Audit, AScoreThatSeesOtherWindowsOfItsBatchIsCaught) {
  ContextScorer scorer(vocab_size_, kContext, 3);
  scorer.spoil_score = [](std::span<const ScoreWindow> windows, const ScoreWindow&, size_t) {
    return static_cast<float>(windows.back().targets.back()) * 1e-6F;
  };
  EXPECT_THAT(failures(scorer), Contains("causality"));
}

TEST_F(Audit, AdaptingToTheScoredTargetsIsCaught) {
  // Adjusting the predictions to all of a window's targets before scoring any of them.
  ContextScorer scorer(vocab_size_, kContext);
  scorer.spoil_score = [](auto, const ScoreWindow& window, size_t) {
    float sum = 0;
    for (Token target : window.targets) sum += static_cast<float>(target);
    return sum * 1e-6F;
  };
  EXPECT_THAT(failures(scorer), Contains("causality"));
}

TEST_F(Audit, ADistributionThatSeesItsTargetIsCaught) {
  ContextScorer scorer(vocab_size_, kContext);
  scorer.spoil_logit = [](std::span<const Token> inputs, size_t position, int64_t v) {
    return position + 1 < inputs.size() && v == inputs[position + 1] ? 0.5F : 0.0F;  // still normalised
  };
  EXPECT_THAT(failures(scorer), Contains("target independence"));
}

TEST_F(Audit, AHintGatedOnTheTargetsValueIsCaught) {
  // The reported distribution is honest; the score is better than it for some values of the target.
  ContextScorer scorer(vocab_size_, kContext);
  scorer.spoil_score = [](auto, const ScoreWindow& window, size_t i) {
    return window.targets[i] % 2 == 0 ? -0.01F : 0.0F;
  };
  EXPECT_THAT(failures(scorer), ElementsAre("score"));
}

TEST_F(Audit, ProbabilitiesThatDoNotSumToOneAreCaught) {
  for (float excess : {1e-4F, -1e-4F, 0.3F, std::numeric_limits<float>::quiet_NaN()}) {
    ContextScorer scorer(vocab_size_, kContext);
    Evaluation evaluation = evaluated(scorer);
    scorer.excess = excess;
    std::vector<AuditCheck> checks = audit_scorer(scorer, tokens_, evaluation, {}, progress_);
    EXPECT_EQ(checks[3].name, "normalisation");
    EXPECT_FALSE(checks[3].passed) << excess;
  }
}

TEST_F(Audit, ADistributionThatIsNotANumberAtOnePositionIsCaught) {
  ContextScorer scorer(vocab_size_, kContext);
  Evaluation evaluation = evaluated(scorer);
  scorer.spoil_logit = [](auto, size_t position, int64_t) {
    return position == 0 ? std::numeric_limits<float>::quiet_NaN() : 0.0F;  // the first position probed
  };
  std::vector<AuditCheck> checks = audit_scorer(scorer, tokens_, evaluation, {}, progress_);
  EXPECT_FALSE(checks[3].passed);
  EXPECT_FALSE(checks[4].passed);
}

TEST_F(Audit, AScorerThatIsNotRepeatableIsCaught) {
  ContextScorer scorer(vocab_size_, kContext);
  int calls = 0;
  scorer.spoil_score = [&](auto, const ScoreWindow&, size_t) { return static_cast<float>(++calls) * 1e-6F; };
  EXPECT_THAT(failures(scorer), Contains("determinism"));
}

TEST_F(Audit, ScoresOfAnotherRunAreCaught) {
  ContextScorer scorer(vocab_size_, kContext);
  Evaluation evaluation = evaluated(scorer);
  for (float& nll : evaluation.nll_nats) nll *= 0.99F;
  EXPECT_FALSE(audit_scorer(scorer, tokens_, evaluation, {}, progress_)[0].passed);
}

TEST_F(Audit, TheSameSeedProbesTheSamePositions) {
  ContextScorer scorer(vocab_size_, kContext);
  Evaluation evaluation = evaluated(scorer);
  auto measured = [&](uint64_t seed) {
    std::string text;
    for (const AuditCheck& check : audit_scorer(scorer, tokens_, evaluation, {.samples = 3, .seed = seed}, progress_))
      text += check.detail + '\n';
    return text;
  };
  EXPECT_EQ(measured(7), measured(7));
  EXPECT_NE(measured(7), measured(8));
}

TEST_F(Audit, CoverageFindsMissingRepeatedAndForeignTargets) {
  const std::vector<Window> good = plan_windows(50, 8, 3);
  EXPECT_TRUE(audit_coverage(good, 50, 8).passed);
  std::vector<Window> windows = good;
  windows.erase(windows.begin() + 2);
  EXPECT_EQ(audit_coverage(windows, 50, 8).measured, 3);
  windows = good;
  windows.back().target_begin -= 2;  // a tail scored again
  EXPECT_FALSE(audit_coverage(windows, 50, 8).passed);
  EXPECT_FALSE(audit_coverage(good, 49, 8).passed);
  EXPECT_FALSE(audit_coverage(good, 51, 8).passed);  // a token dropped at the end
  EXPECT_FALSE(audit_coverage(good, 50, 7).passed);  // a window longer than the context
  EXPECT_FALSE(audit_coverage({}, 0, 8).passed);
}

TEST_F(Audit, WindowsThatDoNotCoverTheScoresAreNotProbed) {
  ContextScorer scorer(vocab_size_, kContext);
  Evaluation evaluation = evaluated(scorer);
  evaluation.windows.back().target_end += 1000;
  AuditReport report = audit(scorer, tokens_, tokenizer_, evaluation, {}, {}, progress_);
  EXPECT_FALSE(report.passed());
  EXPECT_EQ(report.checks.size(), 4U);
}

TEST_F(Audit, ALossThatIsNotTheSumIsCaught) {
  ContextScorer scorer(vocab_size_, kContext);
  Evaluation evaluation = evaluated(scorer);
  EXPECT_TRUE(audit_loss_total(evaluation).passed);
  evaluation.report.loss_nats *= 1 - 1e-12;
  EXPECT_FALSE(audit_loss_total(evaluation).passed);
  evaluation = evaluated(scorer);
  evaluation.nll_nats.push_back(0);  // the same sum, over one target too many
  EXPECT_FALSE(audit_loss_total(evaluation).passed);
}

TEST_F(Audit, ASubsetPassedOffAsTheWholeIsCaught) {
  ContextScorer scorer(vocab_size_, kContext);
  Evaluation evaluation = evaluated(scorer, 20);
  auto label_passes = [&] {
    AuditReport report = audit(scorer, tokens_, tokenizer_, evaluation, {}, {}, progress_);
    return report.checks.at(2).name == "subset label" && report.checks[2].passed;
  };
  EXPECT_TRUE(label_passes());
  evaluation.report.total_targets = 20;  // "all 20 targets"
  EXPECT_FALSE(label_passes());
  evaluation = evaluated(scorer);
  EXPECT_TRUE(label_passes());
  ++evaluation.report.total_targets;
  EXPECT_FALSE(label_passes());
}

TEST_F(Audit, APrintedLabelThatLiesIsCaught) {
  BpbReport part{.targets = 20, .total_targets = 2000, .text_bytes = 40, .context = 8, .stride = 4};
  BpbReport whole = part, single = part;
  whole.targets = 2000;
  single.targets = single.total_targets = 1;
  for (const BpbReport& report : {part, whole, single}) {
    AuditCheck check = audit_subset_label(scored_text(report), to_json(report), report.targets, report.total_targets);
    EXPECT_TRUE(check.passed) << check.detail;
    EXPECT_THAT(check.detail, HasSubstr("printed \"" + scored_text(report) + "\""));
  }
  const std::string rest = ", context 8, stride 4";
  for (const char* label : {"all 20 targets", "all 2,000 targets", "first 21 of 2,000 targets (subset)",
                            "first 20 of 2,001 targets (subset)", "first 20 of 2,000 targets", "20 targets", ""})
    EXPECT_FALSE(audit_subset_label(label + rest, to_json(part), 20, 2000).passed) << label;
  for (const char* label : {"first 20 of 2,000 targets (subset)", "all 20 targets", "all 2,001 targets"})
    EXPECT_FALSE(audit_subset_label(label + rest, to_json(whole), 2000, 2000).passed) << label;
  EXPECT_FALSE(audit_subset_label(scored_text(part), to_json(whole), 20, 2000).passed);
  EXPECT_FALSE(audit_subset_label(scored_text(part), to_json(part), 2001, 2000).passed);
}

TEST_F(Audit, BytesAreThoseOfTheDecodedText) {
  ContextScorer scorer(vocab_size_, kContext);
  for (int64_t targets = 2; targets < static_cast<int64_t>(tokens_.size()); ++targets) {
    BpbReport report = evaluated(scorer, targets).report;  // stops within characters, too
    AuditCheck check = audit_byte_total(report, tokenizer_, tokens_);
    EXPECT_TRUE(check.passed) << check.detail;
    ++report.text_bytes;
    EXPECT_FALSE(audit_byte_total(report, tokenizer_, tokens_).passed);
  }
}

TEST_F(Audit, AStreamThatBeginsWithinADocumentIsCountedToo) {
  tokens_.erase(tokens_.begin(), tokens_.begin() + 2);
  ContextScorer scorer(vocab_size_, kContext);
  AuditCheck check = audit_byte_total(evaluated(scorer).report, tokenizer_, tokens_);
  EXPECT_TRUE(check.passed) << check.detail;
}

TEST_F(Audit, LongDocumentsAreComparedInStretches) {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += i % 7 == 0 ? "the 日本 " : "a the\té ";
  text += "a";
  tokens_ = tokens_of_text(tokenizer_, text, "long.txt");
  UniformScorer scorer(vocab_size_, kContext);
  AuditCheck check = audit_byte_total(evaluated(scorer).report, tokenizer_, tokens_);
  EXPECT_TRUE(check.passed) << check.detail;
}

TEST_F(Audit, BytesThatAreNotUtf8AreOneByteEach) {
  const auto lone = static_cast<Token>(kFirstByteToken + 0xC3);
  tokens_ = {kBosToken, lone, kFirstTextToken + 1, kBosToken, kFirstTextToken + 1};
  UniformScorer scorer(vocab_size_, kContext);
  AuditCheck check = audit_byte_total(evaluated(scorer).report, tokenizer_, tokens_);
  EXPECT_TRUE(check.passed) << check.detail;
  EXPECT_THAT(check.detail, HasSubstr("in 2 stretches of text 3 B counted, 3 B decoded, 1 of them not UTF-8"));
}

TEST_F(Audit, TextsOfByteTokensAloneAreCounted) {
  UniformScorer scorer(vocab_size_, kContext);
  for (const std::string text : {"日本", "日", "😀😀", "\x7f", "日本\n<|doc|>\n語", "\xEF\xBF\xBD", "\xE2\x96\x80"}) {
    tokens_ = tokens_of_text(tokenizer_, text, "text.txt");
    for (bool has_start : {true, false}) {
      if (!has_start) tokens_.erase(tokens_.begin(), tokens_.begin() + 2);  // BOS, and the space in front
      if (tokens_.size() < 2) continue;
      BpbReport report = evaluated(scorer).report;
      AuditCheck check = audit_byte_total(report, tokenizer_, tokens_);
      EXPECT_TRUE(check.passed) << text << ": " << check.detail;
      ++report.text_bytes;
      EXPECT_FALSE(audit_byte_total(report, tokenizer_, tokens_).passed);
      if (!has_start) continue;
      --report.text_bytes;
      const AuditCheck source = audit_source_text(report, tokenizer_, tokens_, {text, "text.txt"});
      EXPECT_EQ(source.measured, 1) << text << ": " << source.detail;
    }
  }
}

TEST_F(Audit, StreamsOfAnyByteTokensAreCounted) {
  UniformScorer scorer(vocab_size_, kContext);
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    // Bytes that often make up characters, and often do not; longer than a stretch in some.
    const size_t length = i % 10 == 0 ? 3000 : 2 + random() % 40;
    tokens_.clear();
    while (tokens_.size() < length) {
      const uint32_t draw = random() % 16;
      if (draw == 0) tokens_.push_back(kBosToken);
      const uint8_t leads[] = {0xE3, 0xC3, 0xF0, 0x41};
      const uint32_t byte = draw < 6 ? 0x80 + random() % 0x40 : draw < 10 ? leads[draw - 6] : random() % 256;
      if (draw == 15 && tokens_.size() > 1 && tokens_.back() != kBosToken)
        tokens_.push_back(static_cast<Token>(kFirstTextToken + 2));  // "the"
      else
        tokens_.push_back(static_cast<Token>(kFirstByteToken + byte));
    }
    AuditCheck check = audit_byte_total(evaluated(scorer).report, tokenizer_, tokens_);
    EXPECT_TRUE(check.passed) << check.detail;
  }
}

TEST_F(Audit, UnknownCharactersAreFoundMissingFromTheCount) {
  ModelSpec spec;  // no byte fallback: 日 becomes <unk>, which counts no bytes
  spec.pieces = {{"<unk>", PieceType::kUnknown}, {"<s>", PieceType::kControl}, {"▁"}, {"a"}};
  tokenizer_ = spec.tokenizer();
  const std::string text = "a 日 a";
  tokens_ = tokens_of_text(tokenizer_, text, "text.txt");
  UniformScorer scorer(tokenizer_.vocab_size(), kContext);
  AuditCheck check = audit_source_text(evaluated(scorer).report, tokenizer_, tokens_, {text, "text.txt"});
  EXPECT_TRUE(check.passed) << check.detail;  // fewer bytes make BPB worse, not better
  EXPECT_LT(check.measured, 1);
}

TEST_F(Audit, TokensDroppedFromTheTextAreCaught) {
  UniformScorer scorer(vocab_size_, kContext);
  const std::vector<Token> whole = tokens_;
  tokens_.pop_back();
  BpbReport report = evaluated(scorer).report;
  AuditCheck check = audit_source_text(report, tokenizer_, tokens_, {kText, "text.txt"});
  EXPECT_FALSE(check.passed);
  EXPECT_THAT(check.detail, HasSubstr("differ at position " + std::to_string(tokens_.size())));
  tokens_ = whole;
  tokens_[5] = kBosToken;
  EXPECT_THAT(audit_source_text(report, tokenizer_, tokens_, {kText, "text.txt"}).detail, HasSubstr("position 5"));
}

TEST_F(Audit, ANormaliserThatLengthensTheTextIsCaught) {
  ModelSpec spec = byte_fallback_model({{"▁"}, {"a"}, {"y"}});
  spec.charsmap = TrieParts().charsmap();  // x becomes yy
  tokenizer_ = spec.tokenizer();
  tokens_ = tokens_of_text(tokenizer_, "ax", "text.txt");
  UniformScorer scorer(tokenizer_.vocab_size(), kContext);
  AuditCheck check = audit_source_text(evaluated(scorer).report, tokenizer_, tokens_, {"ax", "text.txt"});
  EXPECT_FALSE(check.passed);
  EXPECT_EQ(check.measured, 1.5);
}

TEST_F(Audit, OnlyDocumentsScoredInFullAreComparedWithTheText) {
  UniformScorer scorer(vocab_size_, kContext);
  const auto whole = audit_source_text(evaluated(scorer).report, tokenizer_, tokens_, {kText, "text.txt"});
  EXPECT_EQ(whole.measured, 1);
  EXPECT_THAT(whole.detail, HasSubstr("3 documents"));
  const auto part = audit_source_text(evaluated(scorer, static_cast<int64_t>(tokens_.size()) - 2).report, tokenizer_,
                                      tokens_, {kText, "text.txt"});
  EXPECT_EQ(part.measured, 1);
  EXPECT_THAT(part.detail, HasSubstr("2 documents"));
}

TEST_F(Audit, ReportsAreRendered) {
  AuditReport report{.checks = {{"one", true, "fine", 0}, {"two", false, "broken", std::nan("")}}};
  EXPECT_FALSE(report.passed());
  EXPECT_EQ(to_text(report), "pass  one: fine\nFAIL  two: broken\n");
  Json json = to_json(report);
  EXPECT_EQ(json["passed"], false);
  EXPECT_EQ(json["checks"][0]["name"], "one");
  EXPECT_TRUE(json["checks"][1]["measured"].is_null());
  EXPECT_FALSE(AuditReport{}.passed());  // nothing checked is nothing proved
}

TEST_F(Audit, NothingToProbeIsAnError) {
  UniformScorer scorer(vocab_size_, kContext);
  Evaluation none;
  EXPECT_THROW(audit_scorer(scorer, tokens_, none, {}, progress_), UsageError);
}

TEST(AuditData, ThePublicTextsBytesAgreeWithItsTokens) {
  const std::string folder = shared_data("text/");
  if (!file_exists(folder + "val_public.txt")) GTEST_SKIP() << "the shared data is not there";
  Tokenizer tokenizer = Tokenizer::load(folder + "sp1024.model");
  const std::vector<Token> tokens = read_shards(std::vector{folder + "val_public.sp1024.bin"}, 1024);
  UniformScorer scorer(1024, 2048);
  SilentProgress progress;
  BpbReport report = evaluate(scorer, tokens, ByteTable(tokenizer), {.stride = 2048}, progress).report;
  EXPECT_EQ(report.text_bytes, 1876091);
  AuditCheck decoded = audit_byte_total(report, tokenizer, tokens);
  EXPECT_TRUE(decoded.passed) << decoded.detail;
  MappedFile text(folder + "val_public.txt");
  AuditCheck source = audit_source_text(report, tokenizer, tokens, {as_text(text.bytes()), text.path()});
  EXPECT_TRUE(source.passed) << source.detail;
  EXPECT_NEAR(source.measured, 1876091.0 / 1881059, 1e-12);
}

}  // namespace
}  // namespace thimble::audit_test
