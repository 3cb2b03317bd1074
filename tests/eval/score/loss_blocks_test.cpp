// loss_blocks_test.cpp: blocks of losses against plain sums, and the standard error of a gap against a direct
// computation and against the truth where that is known.
#include "eval/score/loss_blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <random>

#include "tests/eval/tokenizers/tokenizer_builder.h"

namespace thimble::loss_blocks_test {
namespace {

using namespace thimble::testing;

class LossBlocksTest : public ::testing::Test {
 protected:
  // Pieces of 1 and of 4 bytes.
  Tokenizer tokenizer_ = byte_fallback_model({{"a"}, {"aaaa"}}).tokenizer();
  ByteTable bytes_{tokenizer_};
  std::mt19937 random_{1};

  std::vector<Token> random_tokens(int64_t targets) {
    std::vector<Token> tokens = {kBosToken};
    while (static_cast<int64_t>(tokens.size()) <= targets)
      tokens.push_back(static_cast<Token>(kFirstTextToken + random_() % 2));
    return tokens;
  }
};

TEST_F(LossBlocksTest, TheirNumberFollowsFromTargetsAndStride) {
  EXPECT_EQ(block_count(0, 64), 0);
  EXPECT_EQ(block_count(kLeastBlocks * kLeastBlockTargets - 1, 64), 0);
  EXPECT_EQ(block_count(kLeastBlocks * kLeastBlockTargets, 64), kLeastBlocks);
  EXPECT_EQ(block_count(21'454, 64), 83);
  EXPECT_EQ(block_count(21'454, 512), 41);
  EXPECT_EQ(block_count(21'454, 2048), 0);
  EXPECT_EQ(block_count(600'000, 64), kMostBlocks);
  EXPECT_EQ(block_count(int64_t{1} << 40, 64), kMostBlocks);
}

TEST_F(LossBlocksTest, EveryTargetIsInOneOfThem) {
  for (int64_t targets : {4096, 4097, 5000, 21'454, 40'001}) {
    const std::vector<Token> tokens = random_tokens(targets);
    std::vector<float> nll(static_cast<size_t>(targets));
    for (size_t i = 0; i < nll.size(); ++i) nll[i] = static_cast<float>(i % 7);  // sums are exact
    const LossBlocks blocks = sum_blocks(nll, tokens, bytes_, 64);
    const int64_t count = block_count(targets, 64);
    ASSERT_EQ(blocks.loss_nats.size(), count);
    ASSERT_EQ(blocks.text_bytes.size(), count);
    double loss = 0;
    int64_t text_bytes = 0;
    for (int64_t k = 0; k < count; ++k) {
      double block_loss = 0;
      int64_t block_bytes = 0, block_targets = 0;
      for (int64_t i = 0; i < targets; ++i) {
        if (i < k * targets / count || i >= (k + 1) * targets / count) continue;
        block_loss += static_cast<double>(i % 7);
        block_bytes += bytes_.bytes_of_target(tokens[static_cast<size_t>(i)], tokens[static_cast<size_t>(i + 1)]);
        ++block_targets;
      }
      EXPECT_EQ(blocks.loss_nats[static_cast<size_t>(k)], block_loss);
      EXPECT_EQ(blocks.text_bytes[static_cast<size_t>(k)], block_bytes);
      EXPECT_LE(std::abs(block_targets - targets / count), 1);
      loss += block_loss;
      text_bytes += block_bytes;
    }
    EXPECT_EQ(text_bytes, bytes_.bytes_of_targets(tokens));
  }
}

TEST_F(LossBlocksTest, TheStandardErrorIsThatOfARatio) {
  const LossBlocks first{{3, 5, 8, 2}, {4, 6, 7, 3}}, second{{4, 5.5, 8.25, 3}, {4, 6, 7, 3}};
  const double gap = 2.75 / std::numbers::ln2 / 20;
  double squares = 0;
  const double differences[] = {1, 0.5, 0.25, 1}, sizes[] = {4, 6, 7, 3};
  for (int k = 0; k < 4; ++k) squares += std::pow(differences[k] / std::numbers::ln2 - gap * sizes[k], 2);
  const double expected = std::sqrt(4.0 / 3.0 * squares) / 20;
  EXPECT_NEAR(paired_standard_error(first, second).value(), expected, 1e-15);
  EXPECT_NEAR(paired_standard_error(second, first).value(), expected, 1e-15);
}

TEST_F(LossBlocksTest, EqualLossesHaveNone) {
  const LossBlocks blocks{{3.1, 5.7, 8.3}, {4, 6, 7}};
  EXPECT_EQ(paired_standard_error(blocks, blocks), 0);
  // Nor has a gap that is the same for every byte, up to rounding.
  LossBlocks worse = blocks;
  for (size_t k = 0; k < 3; ++k) worse.loss_nats[k] += 0.25 * static_cast<double>(blocks.text_bytes[k]);
  EXPECT_NEAR(paired_standard_error(blocks, worse).value(), 0, 1e-15);
}

TEST_F(LossBlocksTest, WithoutBlocksOrOnOtherTextItIsUnknown) {
  const LossBlocks blocks{{3, 5}, {4, 6}};
  EXPECT_FALSE(paired_standard_error({}, {}));
  EXPECT_FALSE(paired_standard_error({{3}, {4}}, {{5}, {4}}));
  EXPECT_FALSE(paired_standard_error(blocks, {{3, 5, 1}, {4, 6, 1}}));
  EXPECT_FALSE(paired_standard_error(blocks, {{3, 5}, {4, 7}}));
  EXPECT_FALSE(paired_standard_error({{3, 5}, {0, 0}}, {{3, 5}, {0, 0}}));
}

// Differences with a mean per byte, and around it noise that stays for `memory` targets: of known variance.
TEST_F(LossBlocksTest, ItTellsHowFarGapsScatter) {
  constexpr int64_t kTargets = 64 * 256;
  constexpr int kMemory = 16, kTexts = 400;
  constexpr double kMeanPerByte = 0.01, kDeviation = 0.5;
  std::normal_distribution<double> normal(0, kDeviation);
  std::vector<float> original(kTargets), other(kTargets);
  double gap_sum = 0, gap_squares = 0, error_sum = 0;
  int covered = 0;
  for (int text = 0; text < kTexts; ++text) {
    const std::vector<Token> tokens = random_tokens(kTargets);
    double noise = 0;
    for (size_t i = 0; i < kTargets; ++i) {
      if (i % kMemory == 0) noise = normal(random_);
      original[i] = 3.0F + 2.0F * static_cast<float>(random_() % 2);  // what both models find hard
      const auto size = static_cast<double>(bytes_.bytes_of_target(tokens[i], tokens[i + 1]));
      other[i] = original[i] + static_cast<float>(kMeanPerByte * size + noise);
    }
    const LossBlocks first = sum_blocks(original, tokens, bytes_, 64), second = sum_blocks(other, tokens, bytes_, 64);
    double difference = 0;
    for (size_t k = 0; k < first.loss_nats.size(); ++k) difference += second.loss_nats[k] - first.loss_nats[k];
    const double gap = difference / std::numbers::ln2 / static_cast<double>(bytes_.bytes_of_targets(tokens));
    const double error = paired_standard_error(first, second).value();
    gap_sum += gap;
    gap_squares += gap * gap;
    error_sum += error;
    covered += std::abs(gap - kMeanPerByte / std::numbers::ln2) < 2 * error ? 1 : 0;
  }
  // Var(sum of noise) = targets * memory * deviation^2; bytes are 2.5 per target within a percent.
  const double truth = kDeviation * std::sqrt(double{kTargets} * kMemory) / std::numbers::ln2 / (2.5 * kTargets);
  const double mean = gap_sum / kTexts, scatter = std::sqrt(gap_squares / kTexts - mean * mean);
  EXPECT_NEAR(scatter, truth, 0.15 * truth);  // 400 texts: 3.5 % is one standard deviation
  EXPECT_NEAR(error_sum / kTexts, truth, 0.05 * truth);
  EXPECT_NEAR(covered, 0.95 * kTexts, 20);
}

}  // namespace
}  // namespace thimble::loss_blocks_test
