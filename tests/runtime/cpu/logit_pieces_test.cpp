// logit_pieces_test.cpp: losses, gradients and divergences over a vocabulary so large that a window's logits are made
// in several pieces.
#include "runtime/ops/logit_pieces.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "runtime/cpu/cpu_gradients.h"
#include "runtime/cpu/cpu_models.h"
#include "runtime/ops/ops.h"
#include "tests/runtime/ops/random_tokens.h"

namespace thimble::logit_pieces_test {
namespace {

TEST(LogitPieces, HoldABoundedNumberOfLogits) {
  for (const int64_t vocabulary : {1, 29, 1024, 49152, 50257, 128256, 262144, 262208, 1 << 19}) {
    EXPECT_LE(logit_rows(vocabulary) * vocabulary, kMostLogits);
    EXPECT_EQ(logit_rows(vocabulary) % kLogitRowMultiple, 0);
  }
}

TEST(LogitPieces, CoverAllRowsInOrder) {
  std::vector<std::pair<int64_t, int64_t>> pieces;
  for_each_logit_piece(150, 1 << 20, [&](int64_t first, int64_t rows) { pieces.emplace_back(first, rows); });
  EXPECT_EQ(pieces, (std::vector<std::pair<int64_t, int64_t>>{{0, 64}, {64, 64}, {128, 22}}));
}

constexpr int64_t kVocabulary = 1 << 19, kWidth = 16, kRows = 67;  // pieces of 64 rows and 3

// Logits are a token's row of the table times all rows of the head.
class LargeVocabulary : public ::testing::Test {
 protected:
  static std::shared_ptr<const Weights> make(double scale) {
    Ops ops({{"table", {kVocabulary, kWidth}, Role::kTable}, {"head", {kVocabulary, kWidth}, Role::kHead}});
    const Value x = ops.gather("table");
    auto network = std::make_shared<const Network>(std::move(ops).head(x, "head"));
    FloatTensors tensors;
    for (const char* name : {"table", "head"})
      for (int64_t i = 0; i < kVocabulary * kWidth; ++i)
        tensors[name].push_back(
            static_cast<float>(scale * (static_cast<double>((i * 48271 + i / 7) % 65537) / 65537 - 0.5)));
    return std::make_shared<const Weights>(bind_weights(std::move(network), std::move(tensors)));
  }

  // Softmax of a row in float64, and the logarithm of its sum.
  static std::vector<double> probabilities(const Weights& weights, Token input) {
    std::vector<double> all(static_cast<size_t>(kVocabulary));
    const Matrix table = weights.matrices[0].widened(), head = weights.matrices[1].widened();
    const float* x = table.row(input);
    double sum = 0;
    for (int64_t v = 0; v < kVocabulary; ++v) {
      double logit = 0;
      for (int64_t k = 0; k < kWidth; ++k) logit += double{x[k]} * double{head(v, k)};
      sum += all[static_cast<size_t>(v)] = std::exp(logit);
    }
    for (double& value : all) value /= sum;
    return all;
  }

  const std::shared_ptr<const Weights> weights_ = make(2);
  const std::vector<Token> tokens_ = random_tokens(kRows + 1, kVocabulary, 4);
};

struct PieceRecorder final : GradientObserver {
  void on_output_gradient(const std::string&, int64_t first, ConstMatrixView gradient,
                          ConstMatrixView output) override {
    EXPECT_EQ(first, rows);
    EXPECT_LE(gradient.rows * gradient.cols, kMostLogits);
    EXPECT_TRUE(output.rows == 0 || output.rows == gradient.rows);
    rows += gradient.rows;
    ++pieces;
  }
  void on_lookup_gradient(const std::string&, std::span<const int32_t>, ConstMatrixView gradient) override {
    for (int64_t p = 0; p < gradient.rows; ++p) lookups.emplace_back(gradient.row(p), gradient.row(p) + gradient.cols);
  }
  int64_t rows = 0, pieces = 0;
  std::vector<std::vector<float>> lookups;
};

TEST_F(LargeVocabulary, ScoresAndGradientsAreThoseOfWholeRows) {
  const auto inputs = std::span(tokens_).first(kRows), targets = std::span(tokens_).subspan(1);
  const ScoreWindow window{inputs, targets};
  std::vector<float> nll(kRows);
  const auto scorer = make_cpu_scorer(weights_, Numerics::kFp32, kRows);
  scorer->score({&window, 1}, nll);

  PieceRecorder found;
  CpuGradients gradients(*weights_, kRows, /*for_gains=*/true);
  const double loss = gradients.run(tokens_, {}, found);
  const double sum = std::accumulate(nll.begin(), nll.end(), 0.0);
  EXPECT_NEAR(loss, sum, 1e-6 * sum);
  EXPECT_EQ(found.pieces, 2);
  EXPECT_EQ(found.rows, kRows);
  ASSERT_EQ(found.lookups.size(), static_cast<size_t>(kRows));

  for (const size_t p : {0, 63, 64, 66}) {  // around the pieces' ends
    SCOPED_TRACE(p);
    const Matrix head = weights_->matrices[1].widened();
    std::vector<double> expected = probabilities(*weights_, inputs[p]);
    EXPECT_NEAR(nll[p], -std::log(expected[static_cast<size_t>(targets[p])]), 1e-4);
    Matrix row(1, kVocabulary);
    scorer->log_probabilities(inputs, kRows, static_cast<int64_t>(p), row);
    EXPECT_EQ(-row(0, targets[p]), nll[p]);
    for (const int64_t v : {int64_t{0}, kVocabulary / 2, kVocabulary - 1})
      EXPECT_NEAR(row(0, v), std::log(expected[static_cast<size_t>(v)]), 1e-4);
    expected[static_cast<size_t>(targets[p])] -= 1;
    for (int64_t k = 0; k < kWidth; ++k) {
      double slope = 0;
      for (int64_t v = 0; v < kVocabulary; ++v) slope += expected[static_cast<size_t>(v)] * double{head(v, k)};
      EXPECT_NEAR(found.lookups[p][static_cast<size_t>(k)], slope, 3e-4) << k;
    }
  }
}

// Whatever was asked before.
TEST_F(LargeVocabulary, RowsOfAWindowAreThoseOfItAlone) {
  const std::span<const Token> all = std::span(tokens_).first(kRows), other = std::span(tokens_).subspan(1, kRows);
  auto row = [&](Scorer& scorer, std::span<const Token> inputs, int64_t targets, int64_t first) {
    Matrix out(1, kVocabulary);
    scorer.log_probabilities(inputs, targets, first, out);
    return std::vector<float>(out.values().begin(), out.values().end());
  };
  struct Asked {
    std::span<const Token> inputs;
    int64_t targets, first;
  };
  const std::unique_ptr<Scorer> scorer = make_cpu_scorer(weights_, Numerics::kFp32, kRows);
  std::vector<float> nll(1);
  for (const Asked& a : {Asked{all, kRows, 0},
                         {all, kRows, 64},
                         {all, 3, 2},
                         {other, kRows, 64},
                         {other, kRows, 0},
                         {all.first(kRows - 1), 3, 2},
                         {all, 3, 2}}) {
    SCOPED_TRACE(::testing::Message() << a.inputs.size() << " " << a.targets << " " << a.first);
    const std::unique_ptr<Scorer> alone = make_cpu_scorer(weights_, Numerics::kFp32, kRows);
    EXPECT_EQ(row(*scorer, a.inputs, a.targets, a.first), row(*alone, a.inputs, a.targets, a.first));
    const ScoreWindow window{other.first(5), other.subspan(5, 1)};
    if (a.targets == 3) scorer->score({&window, 1}, nll);
    if (a.first == 64) {
      EXPECT_FALSE(scorer->find_non_finite_input(other));
    }
  }
}

TEST_F(LargeVocabulary, DivergencesAreThoseOfWholeRows) {
  const TokenSequences sequences{1, kRows + 1, tokens_};
  const auto pass = make_cpu_divergence_pass(make(1.5), *weights_, sequences);
  const double found = pass->divergence(0, 1);
  const GainGradients gradients = pass->gradients(0, 1);
  EXPECT_NEAR(gradients.divergence, found, 1e-9 * found);
  // By the logarithm of the head's gain, as differences find it.
  auto with_head = [&](double log_gain) {
    Gains gains;
    gains.head = static_cast<float>(std::exp(log_gain));
    pass->set(gains);
    return pass->divergence(0, 1);
  };
  const double slope = (with_head(0.01) - with_head(-0.01)) / 0.02;
  EXPECT_GT(std::abs(slope), 0.1);
  EXPECT_NEAR(gradients.head, slope, 0.01 * std::abs(slope));
}

}  // namespace
}  // namespace thimble::logit_pieces_test
