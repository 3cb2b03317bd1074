// model_scorer_test.cpp: an evaluation on a real model: which inputs and targets a window stands for, and the same
// scores on one device and on several.
#include "eval/score/model_scorer.h"

#include <gtest/gtest.h>

#include "eval/score/bpb.h"
#include "runtime/cpu/backend_language_model.h"
#include "runtime/device/split_language_model.h"
#include "tests/runtime/families/golf/random_model.h"

namespace thimble {
namespace {

constexpr int64_t kContext = 16;

class ModelScorerTest : public testing::Test {
 protected:
  std::vector<float> scores(LanguageModel& model, std::span<const Window> windows) const {
    ModelScorer scorer(model);
    std::vector<float> nll(tokens_.size() - 1);
    SilentProgress progress;
    score_windows(scorer, tokens_, windows, nll, progress);
    return nll;
  }

  Model model_ = random_golf_model(small_golf_config(), 3);
  std::vector<uint16_t> tokens_ = random_tokens(90, model_.config.vocab_size);
  std::vector<Window> windows_ = plan_windows(static_cast<int64_t>(tokens_.size()) - 1, kContext, 5);
  std::unique_ptr<LanguageModel> cpu_ = make_cpu_language_model(model_, kContext);
};

TEST_F(ModelScorerTest, TargetsFollowTheInputsBeforeThem) {
  std::vector<float> nll = scores(*cpu_, windows_);
  for (const Window& window : windows_) {
    for (int64_t target = window.target_begin; target < window.target_end; ++target) {
      // The inputs up to the target's own, as a window that ends there.
      auto inputs = std::span<const uint16_t>(tokens_).subspan(static_cast<size_t>(window.first_token),
                                                               static_cast<size_t>(target + 1 - window.first_token));
      Matrix row(1, model_.config.vocab_size);
      cpu_->log_probabilities(inputs, row);
      EXPECT_NEAR(nll[static_cast<size_t>(target)], -row(0, tokens_[static_cast<size_t>(target + 1)]), 1e-3);
    }
  }
}

TEST_F(ModelScorerTest, LogProbabilitiesAreTheScores) {
  ModelScorer scorer(*cpu_);
  EXPECT_EQ(scorer.vocab_size(), model_.config.vocab_size);
  EXPECT_EQ(scorer.context(), kContext);
  std::vector<float> nll = scores(*cpu_, windows_);
  for (const Window& window : windows_) {
    for (int64_t first = window.target_begin; first < window.target_end; ++first) {
      Matrix rows(std::min<int64_t>(2, window.target_end - first), model_.config.vocab_size);
      scorer.log_probabilities(tokens_, window, first, rows);
      for (int64_t r = 0; r < rows.rows(); ++r)
        ASSERT_EQ(nll[static_cast<size_t>(first + r)], -rows(r, tokens_[static_cast<size_t>(first + r + 1)]));
    }
  }
}

TEST_F(ModelScorerTest, SeveralDevicesScoreTheSameBits) {
  std::vector<std::unique_ptr<LanguageModel>> parts;
  for (int i = 0; i < 3; ++i) parts.push_back(make_cpu_language_model(model_, kContext));
  std::unique_ptr<LanguageModel> three = make_split_language_model(std::move(parts));
  EXPECT_EQ(ModelScorer(*three).preferred_windows(), 3);
  EXPECT_EQ(scores(*three, windows_), scores(*cpu_, windows_));
}

}  // namespace
}  // namespace thimble
