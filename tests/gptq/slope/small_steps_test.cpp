// small_steps_test.cpp: steps of small tensors follow c and the Fisher information, and that tells what errors cost.
#include "gptq/slope/small_steps.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "runtime/base/random.h"
#include "runtime/cpu/cpu_models.h"
#include "tests/runtime/families/golf/random_model.h"

namespace thimble::small_steps_test {
namespace {

TEST(SmallStepsTest, ValuesAreTheNearestMultiples) {
  EXPECT_EQ(rounded_to_steps({1.3F, -0.6F, 0.1F, 7}, -1), (std::vector<float>{1.5F, -0.5F, 0, 7}));
  EXPECT_EQ(rounded_to_steps({0.25F, 0.75F, -0.25F}, -1), (std::vector<float>{0, 1, 0})) << "ties to even";
  EXPECT_EQ(rounded_to_steps({5, -7}, 2), (std::vector<float>{4, -8}));
  const std::vector<float> fine = {0.1F, 3e-5F};
  EXPECT_EQ(rounded_to_steps(fine, -60), fine);
  EXPECT_EQ(rounded_to_steps(rounded_to_steps(fine, -7), -7), rounded_to_steps(fine, -7));
}

TEST(SmallStepsTest, AnOctaveOfCIsAnOctaveOfSteps) {
  const SmallSteps steps({{"a", 1}, {"b", 16}}, {{"a", std::vector<float>(9, 1)}, {"b", std::vector<float>(9, 1)}});
  EXPECT_EQ(steps.at(-7), (SmallExponents{{"a", -8}, {"b", -10}}));
  EXPECT_EQ(steps.at(-6), (SmallExponents{{"a", -7}, {"b", -9}}));
}

TEST(SmallStepsTest, NoneIsLongerThanHalfTheValues) {
  const SmallSteps steps({{"a", 1}, {"free", 0}},
                         {{"a", std::vector<float>(9, 4)}, {"free", std::vector<float>(9, 5)}});
  EXPECT_EQ(steps.at(60), (SmallExponents{{"a", 1}, {"free", 1}}));
  EXPECT_EQ(steps.at(-60), (SmallExponents{{"a", -61}, {"free", 1}}));
}

TEST(SmallStepsTest, WhatHasNothingToGainGetsNone) {
  const std::vector<float> ones(SmallSteps::kLeastElements, 1), few(SmallSteps::kLeastElements - 1, 1);
  const SmallSteps steps(
      {{"few", 1}, {"zero", 1}, {"lost", NAN}, {"absent", 1}, {"a", 1}},
      {{"few", few}, {"zero", std::vector<float>(9)}, {"lost", ones}, {"unknown", ones}, {"a", ones}});
  EXPECT_EQ(steps.at(-3), (SmallExponents{{"a", -4}}));
  EXPECT_TRUE(SmallSteps().empty());
  EXPECT_NE(SmallSteps().key(), steps.key());
}

// Random errors of a tensor bring the divergence that its Fisher information says. Where the head is small predictions
// are near to uniform, so that random tokens are such as the model would write.
TEST(SmallStepsTest, FisherTellsWhatErrorsCost) {
  constexpr int64_t kSequences = 24, kLength = 65;
  const GolfConfig config = small_golf_config();
  OwnedTensors tensors = random_golf_tensors(config, 2);
  Tensor& head = tensors.at("tok_emb.weight");
  std::vector<float> weights = to_float32(head.view());
  for (float& weight : weights) weight *= 0.1F;
  head.bytes = from_float32(head.dtype, weights);
  const std::shared_ptr<const Weights> original = golf_weights(config, tensors);
  const TokenSequences tokens = {kSequences, kLength, random_tokens(kSequences * kLength, config.vocab_size, 4)};
  const auto pass = make_cpu_divergence_pass(original, *original, tokens, fisher_pass_options());
  const SmallFisher fisher = small_fisher(*pass, kSequences, kLength - 1);
  const auto compare = make_cpu_divergence_pass(original, *original, tokens, {});
  int64_t compared = 0;
  for (const auto& [name, values] : original->small) {
    if (values.size() < 32) continue;
    Gains gains;
    gains.small = original->small;
    const double size = 0.02 * std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0) /
                                         static_cast<double>(values.size()));
    std::vector<float>& changed = gains.small.at(name);
    double squares = 0;
    for (size_t i = 0; i < changed.size(); ++i) {
      const double error = size * (2 * uniform_at(5, 0, i) - 1);
      changed[i] += static_cast<float>(error);
      squares += error * error;
    }
    compare->set(gains);
    const double found = compare->divergence(0, kSequences) / static_cast<double>(kSequences * (kLength - 1));
    const double predicted = fisher.at(name) * squares / 2;
    EXPECT_GT(found, predicted / 2) << name;
    EXPECT_LT(found, predicted * 2) << name;
    ++compared;
  }
  EXPECT_GT(compared, 4);
}

}  // namespace
}  // namespace thimble::small_steps_test
