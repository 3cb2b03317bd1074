// gain_tuner_test.cpp: wrong gains and small tensors are found again.
#include "gptq/slope/gain_tuner.h"

#include <gtest/gtest.h>

#include "runtime/base/parallel.h"
#include "runtime/cpu/cpu_models.h"
#include "tests/runtime/families/golf/random_model.h"

namespace thimble::gain_tuner_test {
namespace {

// The student is the teacher but for up to 10% too little in some rows, and in some small tensors.
class GainTunerTest : public ::testing::Test {
 protected:
  static constexpr int64_t kSequences = 8, kLength = 65;

  GainTunerTest() {
    OwnedTensors tensors = random_golf_tensors(config_, 2);
    const auto weights_of = [&] {
      return std::make_shared<const Weights>(bind_weights(network_, float_tensors(views_of(tensors))));
    };
    const auto teacher = weights_of();
    for (auto& [name, tensor] : tensors) {
      std::vector<float> values = to_float32(tensor.view());
      if (name.ends_with("mlp.fc.weight") || name.ends_with("c_v.weight")) {
        const int64_t rows = tensor.shape[0], columns = tensor.shape[1];
        input_.row_layers.emplace_back(name, rows);
        for (int64_t i = 0; i < rows * columns; ++i)
          values[static_cast<size_t>(i)] *= i / columns % 2 == 0 ? 0.9f : 1.0f;
      }
      if (name.ends_with("mlp_scale"))
        for (float& value : values) value *= 0.95f;
      tensor.bytes = from_float32(tensor.dtype, values);
      if (network_->is_small(name)) input_.small[name] = values;
    }
    sequences_ = {kSequences, kLength, random_tokens(kSequences * kLength, config_.vocab_size, 4)};
    input_.sequences = kSequences - 2;
    input_.positions = kLength - 1;
    input_.tune_head = true;
    pass_ = make_cpu_divergence_pass(teacher, *weights_of(), sequences_);
  }

  Gains tune(int64_t steps) {
    const GainTunerOptions options = {steps, 4, 1e-2, 1e-2};
    GainTuner tuner(input_, options);
    while (tuner.steps_done() < steps) tuner.step(*pass_, input_, options);
    return tuner.gains();
  }
  double held_out(const Gains& gains) {
    pass_->set(gains);
    return pass_->divergence(kSequences - 2, 2);
  }

  GolfConfig config_ = small_golf_config();
  std::shared_ptr<const Network> network_ = std::make_shared<const Network>(golf_network(config_));
  TokenSequences sequences_;
  GainTunerInput input_;
  std::unique_ptr<DivergencePass> pass_;
};

TEST_F(GainTunerTest, FindsWrongGainsAgain) {
  const double before = held_out(tune(0));
  const Gains gains = tune(80);
  EXPECT_LT(held_out(gains), 0.2 * before);
  for (const auto& [name, rows] : input_.row_layers) {
    double low = 0, right = 0;
    for (size_t r = 0; r < static_cast<size_t>(rows); ++r)
      (r % 2 == 0 ? low : right) +=
          std::log(static_cast<double>(gains.rows.at(name)[r])) / static_cast<double>(rows) * 2;
    EXPECT_GT(low, right + 0.015) << name;
  }
}

TEST_F(GainTunerTest, NoStepsChangeNothing) {
  const Gains gains = tune(0);
  EXPECT_EQ(gains.small, input_.small);
  EXPECT_EQ(gains.head, 1);
  for (const auto& [name, rows] : gains.rows)
    for (float gain : rows) EXPECT_EQ(gain, 1);
}

TEST_F(GainTunerTest, ThreadsDoNotChangeBits) {
  const Gains expected = tune(5);
  for (int threads : {1, 3}) {
    ThreadLimit limit(threads);
    const Gains found = tune(5);
    EXPECT_EQ(found.rows, expected.rows);
    EXPECT_EQ(found.small, expected.small);
    EXPECT_EQ(found.head, expected.head);
  }
}

}  // namespace
}  // namespace thimble::gain_tuner_test
