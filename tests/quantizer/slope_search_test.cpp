// slope_search_test.cpp: the artifacts that are found meet their target, are what they say, and took no more encodes
// than allowed; what cannot be met is refused before anything is solved.
#include "quantizer/slope_search.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/runtime/error_matcher.h"
#include "tests/runtime/random_model.h"

namespace thimble {
namespace {

ModelConfig search_config() {
  ModelConfig config = small_golf_config();
  config.num_layers = 2;
  config.ve_layers = {1};
  config.model_dim = 64;
  config.mlp_mult = 3;
  config.rope_dims = 8;
  config.vocab_size = 150;
  config.ve_dim = 16;
  config.bigram_dim = 16;
  return config;
}

class CountingProgress final : public Progress {
 public:
  void begin(std::string_view stage, int64_t, std::string_view) override { ++stages[std::string(stage)]; }
  void advance(int64_t) override {}
  void end() override {}
  std::map<std::string, int> stages;
};

class SlopeSearchTest : public testing::Test {
 protected:
  static constexpr int64_t kSequences = 9, kLength = 49;

  SlopeSearchTest() : layers_(views_, losses(), {}, Device{}, progress_) {
    original_ = bind_model(config_, views_);
    fixed_.config_json = canonical_json(to_json(config_));
    for (const auto& [name, tensor] : tensors_)
      if (!is_golf_matrix(name))
        fixed_.tensors.push_back(
            {name, tensor.shape, RawTensor{DType::kF16, from_float32(DType::kF16, to_float32(tensor.view()))}});
    tokens_ = {kSequences, kLength, random_tokens(kSequences * kLength, config_.vocab_size, 4)};
  }

  // Hessians of inputs whose columns differ in size and depend on each other; tables without one.
  std::map<std::string, MatrixLoss> losses() const {
    std::map<std::string, MatrixLoss> losses;
    for (const auto& [name, tensor] : tensors_) {
      if (!is_golf_matrix(name)) continue;
      const int64_t rows = tensor.shape[0], columns = tensor.shape[1];
      MatrixLoss& loss = losses[name];
      for (int64_t k = 0; k < columns; ++k) loss.diagonal.push_back(1.0 / static_cast<double>(k + 1));
      for (int64_t r = 0; r < rows; ++r) loss.row_weights.push_back(1 + static_cast<double>(r % 3));
      if (name.ends_with("embed.weight")) continue;
      auto hessian = std::make_shared<SymmetricMatrix>(columns);
      for (int64_t i = 0; i < columns; ++i)
        for (int64_t j = 0; j <= i; ++j)
          hessian->lower_row(i)[j] = (i == j ? 1 : 0.3) / std::sqrt(static_cast<double>((i + 1) * (j + 1)));
      loss.hessian = std::move(hessian);
    }
    return losses;
  }

  DistillInput distill_input() const { return {original_, tokens_, device_, {16, 3, 4e-3, 4e-3}}; }

  SlopeOutcome search(const SlopeTarget& target, const DistillInput* distill = nullptr, const GapMeter& gap = {}) {
    StageTimes times;
    SlopeOutcome outcome = SlopeSearch(fixed_, layers_, nullptr, encode_, distill, gap, times, progress_).run(target);
    EXPECT_LE(outcome.encodes, SlopeSearch::kMaxEncodes);
    EXPECT_EQ(decode_artifact(outcome.artifact, "artifact"), outcome.model);
    return outcome;
  }

  static SlopeTarget limit_of(uint64_t bytes) {
    SlopeTarget target;
    target.limit_bytes = bytes;
    return target;
  }

  static void expect_filled(const SlopeOutcome& outcome, uint64_t limit) {
    EXPECT_LE(outcome.artifact.size(), limit);
    EXPECT_GE(static_cast<double>(outcome.artifact.size()), kFill * static_cast<double>(limit));
  }

  // Mean squared error of all weights, in the place of a gap: it falls with the bytes, in small leaps.
  double error_of(const QuantizedModel& model) const {
    double sum = 0, count = 0;
    for (const QuantizedTensor& tensor : model.tensors) {
      const std::vector<float> found = dequantize(tensor), wanted = to_float32(tensors_.at(tensor.name).view());
      for (size_t i = 0; i < found.size(); ++i) sum += std::pow(double{found[i]} - wanted[i], 2);
      count += static_cast<double>(found.size());
    }
    return sum / count;
  }

  ModelConfig config_ = search_config();
  OwnedTensors tensors_ = random_golf_tensors(config_, 3);
  TensorMap views_ = views_of(tensors_);
  CountingProgress progress_;
  SlopeLayers layers_;
  QuantizedModel fixed_;
  EncodeOptions encode_ = encode_options_from("rans");
  Model original_;
  Device device_;
  TokenSequences tokens_;
};

TEST_F(SlopeSearchTest, FillsEveryLimit) {
  for (uint64_t limit : {14'000, 17'000, 25'000, 40'000, 70'000, 110'000}) {
    SCOPED_TRACE(limit);
    expect_filled(search(limit_of(limit)), limit);
  }
}

TEST_F(SlopeSearchTest, FillsEveryLimitWithWhatWasDistilled) {
  const DistillInput distill = distill_input();
  int kept = 0;
  for (uint64_t limit : {13'000, 18'000, 40'000, 80'000}) {
    SCOPED_TRACE(limit);
    const SlopeOutcome outcome = search(limit_of(limit), &distill);
    expect_filled(outcome, limit);
    ASSERT_TRUE(outcome.distill);
    if (!outcome.distill->is_kept) continue;
    ++kept;
    EXPECT_NEAR(held_out_divergence(distill, outcome.model, progress_), outcome.distill->divergence_after,
                1e-5 * outcome.distill->divergence_after);
    EXPECT_LT(outcome.distill->divergence_after, outcome.distill->divergence_before);
  }
  EXPECT_GT(kept, 0) << "distillation never helped";
}

TEST_F(SlopeSearchTest, TheSameAgain) {
  const DistillInput distill = distill_input();
  EXPECT_EQ(search(limit_of(40'000), &distill).artifact, search(limit_of(40'000), &distill).artifact);
}

// Without solving, as with it.
TEST_F(SlopeSearchTest, ZerosAreWhatTheLongestStepsGive) {
  const std::vector<SlopeMatrix> solved = layers_.solve(60, 0, progress_);
  const std::vector<QuantizedTensor> zeros = layers_.zeros();
  ASSERT_EQ(zeros.size(), solved.size());
  for (size_t i = 0; i < zeros.size(); ++i) EXPECT_EQ(zeros[i], solved[i].tensor) << zeros[i].name;
}

TEST_F(SlopeSearchTest, TheImpossibleIsRefusedBeforeAnythingIsSolved) {
  SlopeTarget longest;
  longest.log2_c = 60;
  QuantizedModel zeros = fixed_;
  for (QuantizedTensor& tensor : layers_.zeros()) zeros.tensors.push_back(std::move(tensor));
  std::ranges::sort(zeros.tensors, {}, &QuantizedTensor::name);
  SectionCache cache;
  const uint64_t smallest = artifact_bytes(zeros, encode_, cache, progress_);

  progress_.stages.clear();
  expect_error<CheckError>([&] { search(limit_of(smallest - 1)); },
                           {bytes_text(smallest), "may take " + bytes_text(smallest - 1)});
  EXPECT_FALSE(progress_.stages.contains("solving layers"));
  EXPECT_LE(search(limit_of(smallest)).artifact.size(), smallest);
}

TEST_F(SlopeSearchTest, MoreThanWeightsAreWorthIsLeftOver) {
  const SlopeOutcome outcome = search(limit_of(10'000'000));
  EXPECT_EQ(outcome.encodes, 1);
  EXPECT_LT(error_of(outcome.model), 1e-7);
}

TEST_F(SlopeSearchTest, AGapIsMetWithFewBytes) {
  const GapMeter gap = [&](const QuantizedModel& model) { return error_of(model); };
  uint64_t last = UINT64_MAX;
  for (double wanted : {1e-4, 1e-3, 1e-2}) {
    SCOPED_TRACE(wanted);
    SlopeTarget target;
    target.bpb_gap = wanted;
    const SlopeOutcome outcome = search(target, nullptr, gap);
    EXPECT_LE(error_of(outcome.model), wanted);
    EXPECT_GE(error_of(outcome.model), 0.9 * wanted);
    EXPECT_LT(outcome.artifact.size(), last);
    last = outcome.artifact.size();
  }
}

TEST_F(SlopeSearchTest, AGapIsMetByWhatWasDistilled) {
  const DistillInput distill = distill_input();
  const GapMeter gap = [&](const QuantizedModel& model) { return held_out_divergence(distill, model, progress_); };
  SlopeTarget target;
  target.bpb_gap = 0.3;
  const SlopeOutcome outcome = search(target, &distill, gap);
  ASSERT_TRUE(outcome.distill && outcome.distill->is_kept);
  EXPECT_LE(gap(outcome.model), target.bpb_gap);
  EXPECT_GE(gap(outcome.model), 0.7 * *target.bpb_gap);  // of 48 tokens, which moves in leaps
}

TEST_F(SlopeSearchTest, AGapWithinALimitIsRefusedWhenItTakesMore) {
  const GapMeter gap = [&](const QuantizedModel& model) { return error_of(model); };
  SlopeTarget target;
  target.bpb_gap = 1e-4;
  target.limit_bytes = 20'000;
  expect_error<CheckError>([&] { search(target, nullptr, gap); }, {"0.000100", "may take 20,000 B"});
  target.bpb_gap = -1;
  expect_error<CheckError>([&] { search(target, nullptr, gap); }, {"the gap cannot be met"});
}

// A step that was asked for is no search, and no budget is exceeded for it.
TEST_F(SlopeSearchTest, AStepWithinALimitIsRefusedWhenItTakesMore) {
  SlopeTarget target;
  target.log2_c = -6;
  const uint64_t bytes = search(target).artifact.size();
  target.limit_bytes = bytes;
  EXPECT_EQ(search(target).artifact.size(), bytes);
  target.limit_bytes = bytes - 1;
  expect_error<CheckError>([&] { search(target); }, {bytes_text(bytes), bytes_text(bytes - 1)});
}

}  // namespace
}  // namespace thimble
