// forward_test.cpp: the forward pass of every family and option against its naive one, on windows, on parts of
// windows, piece by piece through a cache, and at the inputs of the linear layers. Run once per instruction set (see
// CMakeLists.txt).
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/base/parallel.h"
#include "runtime/cpu/cpu_gradients.h"
#include "runtime/cpu/cpu_models.h"
#include "runtime/cpu/cpu_pass.h"
#include "tests/runtime/families/family_models.h"
#include "tests/runtime/ops/plan_check.h"

namespace thimble::forward_test {
namespace {

Matrix copied(ConstMatrixView rows) {
  Matrix copy(rows.rows, rows.cols);
  for (int64_t r = 0; r < rows.rows; ++r) std::copy_n(rows.row(r), rows.cols, copy.row(r));
  return copy;
}

// The inputs of linear layers, by the names of all matrices that share one.
struct Recorder final : LinearObserver {
  void on_linear_input(std::span<const std::string> weights, ConstMatrixView input) override {
    for (const std::string& name : weights)
      EXPECT_TRUE(inputs.emplace(name, copied(input)).second) << name << " came twice";
  }
  std::map<std::string, Matrix> inputs;
};

class Forward : public ::testing::TestWithParam<FamilyCase> {
 protected:
  Matrix logits(CpuPass& pass, std::span<const Token> inputs, int64_t first = 0) const {
    const ConstMatrixView hidden = pass.run(window_batch(inputs), nullptr, first);
    Matrix out(hidden.rows, model_.vocabulary());
    pass.logits(hidden, out);
    return out;
  }
  Matrix logits(std::span<const Token> inputs) const {
    CpuPass pass(*model_.weights, model_.context);
    return logits(pass, inputs);
  }
  double logit_tolerance() const { return model_.tolerance(largest_value(naive_.logits)); }

  const FamilyModel model_ = GetParam().make();
  const std::vector<Token> tokens_ = random_tokens(model_.window, model_.vocabulary(), 4);
  const NaiveForward naive_ = model_.naive(model_.tensors, tokens_, {});
};
INSTANTIATE_TEST_SUITE_P(Options, Forward, ::testing::ValuesIn(family_cases()),
                         [](const auto& test) { return test.param.name; });

TEST_P(Forward, LogitsMatchTheNaivePass) { expect_rows(logits(tokens_), naive_.logits, 0, logit_tolerance()); }

TEST_P(Forward, LogProbabilitiesAreNormalisedLogits) {
  NaiveRows expected = naive_.logits;
  for (NaiveRow& row : expected) {
    double sum = 0;
    for (double logit : row) sum += std::exp(logit);
    for (double& logit : row) logit -= std::log(sum);
  }
  const auto scorer = make_cpu_scorer(model_.weights, Numerics::kFp32, model_.context);
  Matrix rows(model_.window, model_.vocabulary());
  scorer->log_probabilities(tokens_, rows);
  expect_rows(rows, expected, 0, 2 * logit_tolerance());
}

TEST_P(Forward, TheLastRowsAloneAreTheSame) {
  CpuPass pass(*model_.weights, model_.context);
  for (int64_t first : {int64_t{1}, model_.window / 2, model_.window - 1})
    if (first < model_.window) expect_rows(logits(pass, tokens_, first), naive_.logits, first, logit_tolerance());
}

// A window run before, longer and of other tokens, leaves nothing behind.
TEST_P(Forward, WindowsDoNotInfluenceEachOther) {
  CpuPass used(*model_.weights, model_.context);
  logits(used, random_tokens(model_.context, model_.vocabulary(), 77));
  EXPECT_TRUE(std::ranges::equal(logits(used, tokens_).values(), logits(tokens_).values()));
}

TEST_P(Forward, TheObserverSeesEachLinearInputOnce) {
  Recorder recorder;
  CpuPass pass(*model_.weights, model_.context);
  pass.run(window_batch(tokens_), nullptr, 0, &recorder);
  for (const auto& [name, expected] : naive_.linear_inputs) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(recorder.inputs.contains(name));
    ASSERT_EQ(recorder.inputs.at(name).cols(), model_.tensors.at(name).shape[1]);
    expect_rows(recorder.inputs.at(name), expected, 0, model_.tolerance(largest_value(expected)));
  }
  EXPECT_EQ(recorder.inputs.size(), naive_.linear_inputs.size());
  EXPECT_EQ(recorder.inputs.size(), model_.network().linear_matrices().size());
}

TEST_P(Forward, TheHeadsInputIsSeenWithItsLogits) {
  struct NoGradients final : GradientObserver {
    void on_output_gradient(const std::string&, int64_t, ConstMatrixView, ConstMatrixView) override {}
    void on_lookup_gradient(const std::string&, std::span<const int32_t>, ConstMatrixView) override {}
  } no_gradients;
  Recorder below, head;
  CpuGradients window(*model_.weights, model_.context);
  std::vector<Token> all = tokens_;
  all.push_back(0);
  window.run(all, {.inputs = &below, .head_input = &head}, no_gradients);
  EXPECT_EQ(below.inputs.size(), naive_.linear_inputs.size());
  ASSERT_EQ(head.inputs.size(), 1u);
  expect_rows(head.inputs.at(model_.head_name()), naive_.head_input, 0,
              model_.tolerance(largest_value(naive_.head_input)));
}

TEST_P(Forward, ThreadsDoNotChangeBits) {
  std::vector<Matrix> results;
  for (int threads : {1, 2, 5}) {
    ThreadLimit limit(threads);
    results.push_back(logits(tokens_));
  }
  EXPECT_TRUE(std::ranges::equal(results[1].values(), results[0].values()));
  EXPECT_TRUE(std::ranges::equal(results[2].values(), results[0].values()));
}

// Several sequences in pieces of several positions through one cache, as one window each.
TEST_P(Forward, CachedPiecesOfABatchEqualWindows) {
  constexpr int64_t kSequences = 3;
  std::vector<TokenBatch> windows;
  std::vector<NaiveForward> expected;
  for (uint64_t s = 0; s < kSequences; ++s) {
    const std::vector<Token> tokens = random_tokens(model_.window, model_.vocabulary(), 20 + s);
    windows.push_back(window_batch(tokens));
    expected.push_back(model_.naive(model_.tensors, tokens, {}));
  }
  CpuPass pass(*model_.weights, model_.context);
  CpuCache cache(model_.network(), kSequences, model_.context);
  int64_t done = 0;
  for (int64_t piece : {1, 2, 5, 1, 14}) {
    const int64_t positions = std::min(piece, model_.window - done);
    if (positions == 0) break;
    TokenBatch batch;
    batch.shape = {kSequences, positions, done};
    for (const TokenBatch& window : windows)
      for (int64_t p = done; p < done + positions; ++p) {
        batch.tokens.push_back(window.tokens[static_cast<size_t>(p)]);
        batch.previous.push_back(window.previous[static_cast<size_t>(p)]);
      }
    Matrix rows(batch.shape.rows(), model_.vocabulary());
    pass.logits(pass.run(batch, &cache), rows);
    for (int64_t s = 0; s < kSequences; ++s) {
      const NaiveRows& all = expected[static_cast<size_t>(s)].logits;
      expect_rows(rows.view().block_rows(s * positions, positions),
                  NaiveRows(all.begin() + done, all.begin() + done + positions), 0, logit_tolerance());
    }
    done += positions;
  }
  EXPECT_EQ(done, model_.window);
}

// What is alive between two nodes is enough to go on.
TEST_P(Forward, APauseAtAnyNodeChangesNoBit) {
  const Matrix expected = logits(tokens_);
  const std::vector<Token> other = random_tokens(model_.context, model_.vocabulary(), 77);
  CpuPass pass(*model_.weights, model_.context);
  for (size_t node = 0; node <= model_.network().nodes.size(); ++node) {
    pass.begin(window_batch(tokens_));
    pass.run_to(node);
    CpuPass::Pause pause = pass.pause();
    pass.run(window_batch(other));
    pass.resume(std::move(pause));
    pass.run_to(model_.network().nodes.size());
    Matrix rows(model_.window, model_.vocabulary());
    pass.logits(pass.value(model_.network().head.hidden), rows);
    EXPECT_TRUE(std::ranges::equal(rows.values(), expected.values())) << "before node " << node;
  }
}

TEST_P(Forward, PlansHoldWhatIsRead) {
  for (bool has_backward : {false, true})
    for (bool for_gains : {false, true})
      expect_valid_plan(
          model_.network(),
          {.has_backward = has_backward, .reads_linear_outputs = for_gains, .has_vector_gradients = for_gains});
}

}  // namespace
}  // namespace thimble::forward_test
