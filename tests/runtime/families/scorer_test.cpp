// scorer_test.cpp: the CPU's scorer against its passes, for every family and numeric mode.
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/cpu/cpu_gradient_kernels.h"
#include "runtime/cpu/cpu_models.h"
#include "runtime/cpu/cpu_pass.h"
#include "tests/runtime/families/family_models.h"
#include "tests/runtime/families/golf/random_model.h"
#include "tests/runtime/families/score_windows.h"
#include "tests/runtime/ops/changed_matrix.h"

namespace thimble::scorer_test {
namespace {

constexpr int64_t kContext = 24;

class CpuScorerTest : public ::testing::TestWithParam<FamilyCase> {
 protected:
  const FamilyModel model_ = GetParam().make();
  const std::vector<Token> tokens_ = random_tokens(3 * kContext, model_.vocabulary());
  const std::vector<ScoreWindow> windows_ = windows_of_every_length(tokens_, kContext);
};
INSTANTIATE_TEST_SUITE_P(Families, CpuScorerTest, ::testing::ValuesIn(undecided_cases()),
                         [](const auto& test) { return test.param.name; });

TEST_P(CpuScorerTest, ScoresAreTheForwardPasss) {
  for (Numerics numerics : kAllNumerics) {
    SCOPED_TRACE(numerics_name(numerics));
    const auto scorer = make_cpu_scorer(model_.weights, numerics, kContext);
    EXPECT_EQ(scorer->context(), kContext);
    EXPECT_EQ(scorer->vocabulary(), model_.vocabulary());
    const NumericPolicy policy = numeric_policy(numerics);
    const auto rounded = rounded_weights(model_.weights, policy);
    CpuPass pass(*rounded, kContext, policy);
    std::vector<float> expected;
    for (const ScoreWindow& window : windows_) {
      const auto first = static_cast<int64_t>(window.inputs.size() - window.targets.size());
      const ConstMatrixView hidden = pass.run(window_batch(window.inputs), nullptr, first);
      Matrix logits(hidden.rows, model_.vocabulary());
      pass.logits(hidden, logits);
      for (int64_t r = 0; r < logits.rows(); ++r) {
        cpu_gradient_kernels().log_softmax(logits.row(r), logits.cols());
        expected.push_back(-logits(r, window.targets[static_cast<size_t>(r)]));
      }
    }
    EXPECT_EQ(scores_of(*scorer, windows_), expected);
  }
}

TEST_P(CpuScorerTest, LogProbabilitiesAreTheDistributionsBehindTheScores) {
  const auto scorer = make_cpu_scorer(model_.weights, Numerics::kFp32, kContext);
  for (const ScoreWindow& window : windows_) {
    Matrix rows(static_cast<int64_t>(window.targets.size()), model_.vocabulary());
    scorer->log_probabilities(window.inputs, rows);
    std::vector<float> nll = scores_of(*scorer, {&window, 1});
    for (int64_t r = 0; r < rows.rows(); ++r)
      ASSERT_EQ(nll[static_cast<size_t>(r)], -rows(r, window.targets[static_cast<size_t>(r)]));
  }
}

// Weights that are finite, and an MLP that overflows when it squares what they give.
TEST(CpuScorer, FindsTheFirstInputThatIsNotFinite) {
  const auto weights = random_golf_weights(small_golf_config());
  const std::vector<Token> tokens = random_tokens(12, 29);
  EXPECT_FALSE(make_cpu_scorer(weights, Numerics::kFp32, 16)->find_non_finite_input(tokens));
  Weights damaged = *weights;
  const MatrixId up = damaged.network->id_of(LayerNames(2).up);
  scale_matrix(damaged, up, 1e25f);
  const auto found =
      make_cpu_scorer(std::make_shared<const Weights>(damaged), Numerics::kFp32, 16)->find_non_finite_input(tokens);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->tensor, "the input of blocks.2.mlp.proj.weight");
  EXPECT_EQ(found->index[0], 0);
  EXPECT_TRUE(std::isinf(found->value));
}

// The angles turn with the model's context, not with what a call asks for.
TEST(CpuScorer, TextIsDrawnFromTheScoresOfTheSameContext) {
  GolfConfig config = small_golf_config();
  config.logit_softcap = 2;
  config.rope_train_seq_len = 4;  // so that the context matters
  const auto weights = random_golf_weights(config, 6);
  const auto scorer = make_cpu_scorer(weights, Numerics::kFp32, kContext);
  std::vector<Token> text = {1, 2, 3};
  make_cpu_generator(weights, Numerics::kFp32, kContext)
      ->text(std::vector<Token>(text), {.most_new_tokens = 5, .seed = 3}, [&](Token token) {
        Matrix row(1, config.vocab_size);
        scorer->log_probabilities(text, row);
        EXPECT_EQ(token, std::ranges::max_element(row.values()) - row.values().begin());
        text.push_back(token);
        return true;
      });
  EXPECT_EQ(text.size(), 8u);
}

}  // namespace
}  // namespace thimble::scorer_test
