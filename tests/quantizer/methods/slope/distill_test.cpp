// distill_test.cpp: tuned models as stored: closer to the original, with the codes they had.
#include "quantizer/methods/slope/distill.h"

#include <gtest/gtest.h>
#include <array>

#include "tests/runtime/families/golf/random_model.h"

namespace thimble::distill_test {
namespace {

// Row steps of the MLP's first matrices are a quarter of an octave too short.
class DistillTest : public ::testing::Test {
 protected:
  static constexpr int64_t kSequences = 9, kLength = 49;
  static constexpr int kColumnStep = -8 * kStepsPerOctave;

  DistillTest() {
    const OwnedTensors tensors = random_golf_tensors(config_, 2);
    model_.config_json = canonical_json(to_json(config_));
    for (const auto& [name, tensor] : tensors) {
      const std::vector<float> values = to_float32(tensor.view());
      if (is_golf_matrix(name))
        model_.tensors.push_back({name, tensor.shape, codes_of(values, tensor.shape, name.ends_with("fc.weight"))});
      else
        model_.tensors.push_back({name, tensor.shape, RawTensor{DType::kF16, from_float32(DType::kF16, values)}});
    }
    artifact_ = encoder_.artifact(model_, encode_, progress_);
    tokens_ = {kSequences, kLength, random_tokens(kSequences * kLength, config_.vocab_size, 4)};
  }

  static SteppedCodes codes_of(const std::vector<float>& values, const Shape& shape, bool is_too_small) {
    SteppedCodes coded;
    coded.row_steps.assign(static_cast<size_t>(shape[0]), 0);
    coded.column_steps.assign(static_cast<size_t>(shape[1]), kColumnStep);
    const double level = 2 * static_cast<double>(step_size(kColumnStep));
    for (float value : values) coded.codes.append(std::array{static_cast<int32_t>(std::lround(value / level))});
    if (is_too_small)
      for (int16_t& step : coded.row_steps) step = -kStepsPerOctave / 4;
    return coded;
  }

  DistillInput input() const { return {original_, tokens_, device_, {30, 4, 2e-2, 5e-3}, work_, 7}; }

  GolfConfig config_ = small_golf_config();
  std::shared_ptr<const Weights> original_ = random_golf_weights(config_, 2);
  Device device_;
  QuantizedModel model_;
  EncodeOptions encode_ = encode_options_from("rans");
  WorkFolder nowhere_{""};
  std::unique_ptr<Ranks> single_ = make_single_rank();
  SharedWork work_{nowhere_, *single_};
  Encoder encoder_{work_, nullptr};
  SilentProgress progress_;
  ByteVector artifact_;
  TokenSequences tokens_;
};

TEST_F(DistillTest, ComesCloserWithTheSameCodes) {
  const auto [model, report] = distill(input(), model_, {}, progress_);
  EXPECT_EQ(report.held_out, 1);
  EXPECT_EQ(report.sequences, kSequences - 1);
  EXPECT_TRUE(report.is_kept);
  EXPECT_LT(report.divergence_after, 0.5 * report.divergence_before);
  ASSERT_EQ(model.tensors.size(), model_.tensors.size());
  int64_t changed = 0;
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    const auto* now = std::get_if<SteppedCodes>(&model.tensors[i].data);
    const auto* before = std::get_if<SteppedCodes>(&model_.tensors[i].data);
    if (!now) continue;
    EXPECT_EQ(now->codes, before->codes);
    EXPECT_EQ(now->column_steps, before->column_steps);
    changed += now->row_steps != before->row_steps;
  }
  EXPECT_GE(changed, config_.num_layers);
}

// What is reported are models as stored: measured alone they are as far from the original, but for the rounding of
// weights that have their gains in them, which instruction sets sum in different orders.
TEST_F(DistillTest, ReportsTheModelsAsTheyAre) {
  const auto [model, report] = distill(input(), model_, {}, progress_);
  EXPECT_NEAR(held_out_divergence(input(), model_, progress_), report.divergence_before,
              1e-4 * report.divergence_before);
  EXPECT_NEAR(held_out_divergence(input(), model, progress_), report.divergence_after, 1e-4 * report.divergence_after);
}

TEST_F(DistillTest, IsTheSameAgain) {
  EXPECT_EQ(distill(input(), model_, {}, progress_).model, distill(input(), model_, {}, progress_).model);
}

TEST_F(DistillTest, ReservesWhatRowStepsTake) {
  const int64_t reserve = distill_reserve_bytes(model_, tuned_names(*original_->network), artifact_.size(), {}, encode_,
                                                encoder_, progress_);
  EXPECT_GT(reserve, 0);
  EXPECT_LT(reserve, static_cast<int64_t>(artifact_.size()) / 4);
}

}  // namespace
}  // namespace thimble::distill_test
