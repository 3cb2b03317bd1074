// language_model_test.cpp: the CPU's LanguageModel against the forward pass and generate.h, and the split over several:
// the same bits however a call is cut.
#include "runtime/device/language_model.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>

#include "runtime/cpu/backend_language_model.h"
#include "runtime/cpu/window_scores.h"
#include "runtime/device/split_language_model.h"
#include "tests/runtime/base/error_matcher.h"
#include "tests/runtime/families/golf/random_model.h"

namespace thimble {
namespace {

constexpr int64_t kContext = 24;

// Counts what generation reports, from any thread.
struct SharedCounter final : Progress {
  void begin(std::string_view, int64_t, std::string_view) override {}
  void advance(int64_t units) override { advanced += units; }
  void end() override {}
  std::atomic<int64_t> advanced = 0;
};

class LanguageModelTest : public testing::Test {
 protected:
  std::unique_ptr<LanguageModel> cpu() { return make_cpu_language_model(model_, kContext); }

  std::unique_ptr<LanguageModel> split(size_t count) {
    std::vector<std::unique_ptr<LanguageModel>> parts;
    for (size_t i = 0; i < count; ++i) parts.push_back(cpu());
    return make_split_language_model(std::move(parts));
  }

  // Windows of every length up to the context, with one, some and all inputs scored.
  std::vector<ScoreWindow> windows() const {
    std::vector<ScoreWindow> all;
    std::span<const uint16_t> tokens(tokens_);
    for (size_t length = 1; length <= kContext; ++length)
      for (size_t scored : {size_t{1}, (length + 1) / 2, length})
        all.push_back({tokens.subspan(length, length), tokens.subspan(2 * length + 1 - scored, scored)});
    return all;
  }

  static size_t targets(std::span<const ScoreWindow> windows) {
    size_t count = 0;
    for (const ScoreWindow& window : windows) count += window.targets.size();
    return count;
  }

  static std::vector<float> scores(LanguageModel& model, std::span<const ScoreWindow> windows) {
    std::vector<float> nll(targets(windows), -1.0f);
    model.score(windows, nll);
    return nll;
  }

  static ModelConfig undecided_config() {
    ModelConfig config = small_golf_config();
    config.logit_softcap = 2;  // keeps a random model's predictions from being certain, so that draws matter
    return config;
  }

  ModelConfig config_ = undecided_config();
  Model model_ = random_golf_model(config_, 6);
  std::vector<uint16_t> tokens_ = random_tokens(3 * kContext, config_.vocab_size);
  CalibrationOptions calibration_{9, kContext, 0.8, 11};
};

TEST_F(LanguageModelTest, ScoresAreTheForwardPasss) {
  std::unique_ptr<LanguageModel> model = cpu();
  EXPECT_EQ(model->context(), kContext);
  EXPECT_EQ(model->vocab_size(), config_.vocab_size);
  std::unique_ptr<Backend> backend = make_cpu_backend();
  WindowScorer scorer(model_, *backend, kContext);
  std::vector<float> expected;
  for (const ScoreWindow& window : windows()) {
    ConstMatrixView rows =
        scorer.log_probabilities(window.inputs, static_cast<int64_t>(window.inputs.size() - window.targets.size()));
    for (int64_t r = 0; r < rows.rows; ++r) expected.push_back(-rows.row(r)[window.targets[static_cast<size_t>(r)]]);
  }
  EXPECT_EQ(scores(*model, windows()), expected);
}

TEST_F(LanguageModelTest, LogProbabilitiesAreTheDistributionsBehindTheScores) {
  std::unique_ptr<LanguageModel> model = cpu();
  for (const ScoreWindow& window : windows()) {
    Matrix rows(static_cast<int64_t>(window.targets.size()), config_.vocab_size);
    model->log_probabilities(window.inputs, rows);
    std::vector<float> nll = scores(*model, {&window, 1});
    for (int64_t r = 0; r < rows.rows(); ++r)
      ASSERT_EQ(nll[static_cast<size_t>(r)], -rows(r, window.targets[static_cast<size_t>(r)]));
  }
}

TEST_F(LanguageModelTest, SplittingWindowsChangesNoBit) {
  std::vector<ScoreWindow> all = windows();
  std::vector<float> expected = scores(*cpu(), all);
  for (size_t parts : {1, 2, 3, 7}) {
    std::unique_ptr<LanguageModel> model = split(parts);
    EXPECT_EQ(scores(*model, all), expected) << parts;
    EXPECT_EQ(model->preferred_windows(), static_cast<int64_t>(parts));
    // Fewer windows than devices, and none.
    EXPECT_EQ(scores(*model, std::span(all).first(1)), scores(*cpu(), std::span(all).first(1)));
    EXPECT_TRUE(scores(*model, {}).empty());
  }
}

TEST_F(LanguageModelTest, SplittingSequencesChangesNoToken) {
  SharedCounter progress;
  TokenSequences expected = cpu()->generate_calibration(calibration_, 0, 9, progress);
  EXPECT_EQ(progress.advanced, 9 * kContext);
  for (size_t parts : {2, 4, 12}) {
    SharedCounter split_progress;
    TokenSequences found = split(parts)->generate_calibration(calibration_, 0, 9, split_progress);
    EXPECT_EQ(found.count, 9);
    EXPECT_EQ(found.length, kContext);
    EXPECT_EQ(found.tokens, expected.tokens) << parts;
    EXPECT_EQ(split_progress.advanced, 9 * kContext);
    TokenSequences later = split(parts)->generate_calibration(calibration_, 5, 3, split_progress);
    EXPECT_TRUE(std::ranges::equal(later.tokens, std::span(expected.tokens).subspan(5 * kContext, 3 * kContext)));
  }
}

TEST_F(LanguageModelTest, ASplitModelAnswersTheRestAsOneDoes) {
  std::unique_ptr<LanguageModel> one = cpu(), three = split(3);
  EXPECT_EQ(three->context(), kContext);
  EXPECT_EQ(three->vocab_size(), config_.vocab_size);
  EXPECT_EQ(three->preferred_sequences(calibration_), 3 * one->preferred_sequences(calibration_));
  Matrix a(4, config_.vocab_size), b(4, config_.vocab_size);
  std::span<const uint16_t> inputs = std::span<const uint16_t>(tokens_).first(10);
  one->log_probabilities(inputs, a);
  three->log_probabilities(inputs, b);
  EXPECT_TRUE(std::ranges::equal(a.values(), b.values()));
  auto text = [&](LanguageModel& model) {
    std::vector<uint16_t> tokens;
    model.generate_text(inputs, 7, 0.9, 3, [&](uint16_t token) {
      tokens.push_back(token);
      return true;
    });
    return tokens;
  };
  EXPECT_EQ(text(*one).size(), 7);
  EXPECT_EQ(text(*one), text(*three));
}

// The angles turn with the model's context, not with what a call asks for.
TEST_F(LanguageModelTest, TextIsDrawnFromTheScoresOfTheSameContext) {
  config_.rope_train_seq_len = 4;  // so that the context matters
  model_ = random_golf_model(config_, 6);
  std::unique_ptr<LanguageModel> model = cpu();
  std::vector<uint16_t> text = {1, 2, 3};
  model->generate_text(text, 5, 0, 3, [&](uint16_t token) {
    Matrix row(1, config_.vocab_size);
    model->log_probabilities(text, row);
    EXPECT_EQ(token, std::ranges::max_element(row.values()) - row.values().begin());
    text.push_back(token);
    return true;
  });
  EXPECT_EQ(text.size(), 8);
}

// Of several errors the first device's is reported; logits that are not finite make one here.
TEST_F(LanguageModelTest, AnErrorOnOneDeviceIsTheCallsError) {
  Model damaged = random_golf_model(config_, 6);
  damaged.token_embedding.values()[0] = std::numeric_limits<float>::quiet_NaN();
  std::vector<std::unique_ptr<LanguageModel>> parts;
  parts.push_back(cpu());
  parts.push_back(make_cpu_language_model(damaged, kContext));
  parts.push_back(cpu());
  std::unique_ptr<LanguageModel> model = make_split_language_model(std::move(parts));
  SilentProgress silent;
  expect_error<Error>([&] { model->generate_calibration(calibration_, 0, 9, silent); }, {"logits are not finite"});
}

}  // namespace
}  // namespace thimble
