// slope_search_test.cpp: the artifacts that are found meet their target, are what they say, and took no more encodes
// than allowed; what cannot be met is refused before anything is solved.
#include "quantizer/methods/slope/slope_search.h"

#include <gtest/gtest.h>

#include <cmath>

#include "gptq/slope/step_plan.h"
#include "tests/quantizer/methods/slope/slope_model.h"
#include "tests/runtime/base/error_matcher.h"

namespace thimble::slope_search_test {
namespace {

GolfConfig search_config() { return two_layer_config(64, 3, 150, 16); }

class CountingProgress final : public Progress {
 public:
  void begin(std::string_view stage, int64_t, std::string_view) override { ++stages[std::string(stage)]; }
  void advance(int64_t) override {}
  void end() override {}
  std::map<std::string, int> stages;
};

class SlopeSearchTest : public ::testing::Test {
 protected:
  DistillInput distill_input() const { return model_.distill_input(); }

  SlopeOutcome search(const SlopeTarget& target, const DistillInput* distill = nullptr, const GapMeter& gap = {}) {
    StageTimes times;
    Encoder encoder(model_.work, &times);
    const SlopeTools tools = {model_.layers, encode_, encoder, times, progress_};
    const std::unique_ptr<Teacher> teacher = distill ? make_teacher(*distill) : nullptr;
    SlopeOutcome outcome = SlopeSearch(model_.fixed, tools, nullptr, teacher.get(), gap).run(target);
    EXPECT_EQ(decode_artifact(outcome.artifact, "artifact"), outcome.model);
    return outcome;
  }

  static SlopeTarget limit_of(uint64_t bytes) { return SlopeModel::limit_of(bytes); }

  static void expect_filled(const SlopeOutcome& outcome, uint64_t limit) {
    EXPECT_LE(outcome.artifact.size(), limit);
    EXPECT_GE(static_cast<double>(outcome.artifact.size()), kFill * static_cast<double>(limit));
  }

  // Mean squared error of all weights, in the place of a gap: it falls with the bytes, in small leaps.
  double error_of(const QuantizedModel& model) const {
    double sum = 0, count = 0;
    for (const QuantizedTensor& tensor : model.tensors) {
      const std::vector<float> found = dequantize(tensor), wanted = to_float32(model_.tensors.at(tensor.name).view());
      for (size_t i = 0; i < found.size(); ++i) sum += std::pow(double{found[i]} - wanted[i], 2);
      count += static_cast<double>(found.size());
    }
    return sum / count;
  }

  SlopeSettings all_at(double log2_c) const {
    SlopeSettings settings;
    for (const std::string& name : model_.layers.names()) settings[name] = {log2_c};
    return settings;
  }

  CountingProgress progress_;
  const SlopeModel model_{search_config(), {}};
  EncodeOptions encode_ = encode_options_from("rans");
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

// The longer the steps, the less they are kept below the weights: all there is at many bits, nothing at the end.
TEST_F(SlopeSearchTest, ShrinkageFallsWithTheBits) {
  const SlopeLayers& layers = model_.layers;
  const auto weights = static_cast<double>(layers.weights());
  EXPECT_EQ(layers.setting_at(layers.size_model().log2_c_for(8 * weights)).shrinkage, layers.options().shrinkage);
  double last = layers.options().shrinkage;
  for (double bits : {3.0, 2.0, 1.0, 0.5}) {
    const double shrinkage = layers.setting_at(layers.size_model().log2_c_for(bits * weights)).shrinkage;
    EXPECT_LT(shrinkage, last) << bits;
    EXPECT_NEAR(shrinkage, shrinkage_for(kShrunkShare * bits), 1e-6 * shrinkage);
    last = shrinkage;
  }
  EXPECT_LT(layers.setting_at(kHighestLog2C).shrinkage, 1e-9);
}

// Without solving, as with it.
TEST_F(SlopeSearchTest, ZerosAreWhatTheLongestStepsGive) {
  const std::vector<SlopeMatrix> solved = model_.layers.solve(all_at(60), progress_);
  const std::vector<QuantizedTensor> zeros = model_.layers.zeros();
  ASSERT_EQ(zeros.size(), solved.size());
  for (size_t i = 0; i < zeros.size(); ++i) EXPECT_EQ(zeros[i], solved[i].tensor) << zeros[i].name;
}

TEST_F(SlopeSearchTest, TheImpossibleIsRefusedBeforeAnythingIsSolved) {
  const uint64_t smallest = model_.smallest_bytes(encode_);
  progress_.stages.clear();
  expect_error<CheckError>([&] { search(limit_of(smallest - 1)); },
                           {bytes_text(smallest), "may take " + bytes_text(smallest - 1)});
  EXPECT_FALSE(progress_.stages.contains("solving layers"));
  EXPECT_LE(search(limit_of(smallest)).artifact.size(), smallest);
}

TEST_F(SlopeSearchTest, MoreThanWeightsAreWorthIsLeftOver) {
  const SlopeOutcome outcome = search(limit_of(10'000'000));
  EXPECT_NE(outcome.fill_reason.find("finest codes"), std::string::npos) << outcome.fill_reason;
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

// Where all codes may be 0, they are; a little less than that asks for a few.
TEST_F(SlopeSearchTest, AHugeGapIsMetByTheSmallestArtifact) {
  const GapMeter gap = [&](const QuantizedModel& model) { return 100 * error_of(model); };
  const double largest = gap(model_.zeros());
  SlopeTarget target;
  for (double wanted : {1.0, 3.0}) {
    target.bpb_gap = wanted * largest;
    EXPECT_EQ(search(target, nullptr, gap).artifact.size(), model_.smallest_bytes(encode_));
  }
  uint64_t last = model_.smallest_bytes(encode_);
  for (double share : {0.9, 0.6, 0.3}) {
    SCOPED_TRACE(share);
    target.bpb_gap = share * largest;
    const SlopeOutcome outcome = search(target, nullptr, gap);
    EXPECT_LE(gap(outcome.model), *target.bpb_gap);
    EXPECT_GE(gap(outcome.model), 0.7 * *target.bpb_gap);
    EXPECT_GT(outcome.artifact.size(), last);
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
}  // namespace thimble::slope_search_test
