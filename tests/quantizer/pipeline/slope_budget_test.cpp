// slope_budget_test.cpp: hundreds of random byte limits: never exceeded, and filled, or not for a true reason.
#include <gtest/gtest.h>

#include "tests/quantizer/methods/slope/slope_model.h"
#include "tests/runtime/base/error_matcher.h"

namespace thimble::slope_budget_test {
namespace {

// Matrices small enough for a search in a blink.
GolfConfig budget_config() { return two_layer_config(32, 2, 90, 8); }

SlopeOptions quick_options(double shrinkage = 4) {
  SlopeOptions options;
  options.trellis_bits = 2;
  options.shrinkage = shrinkage;
  return options;
}

// One code, or one word of the entropy coder, may be more than a thousandth of so few bytes.
constexpr uint64_t kLeastLeap = 24;

void expect_filled_or_explained(const SlopeOutcome& outcome, uint64_t limit, uint64_t finest) {
  const uint64_t bytes = outcome.artifact.size();
  ASSERT_LE(bytes, limit);
  if (is_filled(bytes, limit)) {
    EXPECT_EQ(outcome.fill_reason, "");
  } else if (outcome.fill_reason.find("finest codes") != std::string::npos) {
    EXPECT_EQ(bytes, finest) << "there was more to be had";
  } else {
    EXPECT_NE(outcome.fill_reason.find("leaps"), std::string::npos) << outcome.fill_reason;
    EXPECT_LE(limit - bytes, kLeastLeap) << bytes;
  }
}

class SlopeBudgetTest : public ::testing::Test {
 protected:
  // `count` limits from the smallest artifact to beyond the finest codes, as many small ones as large ones.
  void fill_random_limits(const SlopeModel& model, int count, uint64_t seed, const DistillInput* distill = nullptr,
                          bool crosses = false) const {
    const uint64_t smallest = model.smallest_bytes(encode_);
    const uint64_t finest = model.search(SlopeModel::limit_of(kEnough), encode_).artifact.size();
    ASSERT_LT(smallest, finest);
    for (int i = 0; i < count; ++i) {
      const double share = uniform_at(seed, 0, static_cast<uint64_t>(i));
      const auto limit =
          static_cast<uint64_t>(static_cast<double>(smallest) *
                                std::pow(1.1 * static_cast<double>(finest) / static_cast<double>(smallest), share));
      SCOPED_TRACE(::testing::Message() << "limit " << limit << " of " << smallest << " to " << finest);
      const SlopeOutcome outcome = model.search(SlopeModel::limit_of(limit), encode_, distill, {}, crosses);
      if ((distill || crosses) && limit >= finest) {  // whose finest codes are others
        EXPECT_LE(outcome.artifact.size(), limit);
        continue;
      }
      expect_filled_or_explained(outcome, limit, finest);
    }
  }

  static constexpr uint64_t kEnough = 10'000'000;
  EncodeOptions encode_ = encode_options_from("rans");
};

TEST_F(SlopeBudgetTest, EveryLimitIsFilled) {
  fill_random_limits(SlopeModel(budget_config(), quick_options()), 60, 1);
  fill_random_limits(SlopeModel(budget_config(), quick_options(0)), 40, 2);
}

TEST_F(SlopeBudgetTest, EveryLimitIsFilledWhereAllRowsMoveTogether) {
  fill_random_limits(SlopeModel(budget_config(), quick_options(), {}, true), 40, 3);
}

TEST_F(SlopeBudgetTest, EveryLimitIsFilledWithWeightsOfAnyScale) {
  for (float scale : {1e-10F, 1e10F}) {
    SCOPED_TRACE(scale);
    const SlopeModel model(budget_config(), quick_options(),
                           [&](const std::string&, size_t, float weight) { return scale * weight; });
    fill_random_limits(model, 30, 4);
  }
}

TEST_F(SlopeBudgetTest, EveryLimitIsFilledWithOneOutlier) {
  const SlopeModel model(budget_config(), quick_options(), [](const std::string& name, size_t index, float weight) {
    return name == "blocks.1.mlp.fc.weight" && index == 37 ? 3e5F : weight;
  });
  fill_random_limits(model, 30, 5);
}

TEST_F(SlopeBudgetTest, EveryLimitIsFilledWithCrossTerms) {
  fill_random_limits(SlopeModel(budget_config(), quick_options()), 20, 6, nullptr, true);
}

TEST_F(SlopeBudgetTest, EveryLimitIsFilledWithWhatWasDistilled) {
  const SlopeModel model(budget_config(), quick_options());
  const DistillInput distill = model.distill_input();
  fill_random_limits(model, 8, 7, &distill);
  fill_random_limits(model, 8, 8, &distill, true);
}

TEST_F(SlopeBudgetTest, EveryCodecFillsALimit) {
  const SlopeModel model(budget_config(), quick_options());
  for (const char* codec : {"brotli", "zstd", "xz", "auto"}) {
    SCOPED_TRACE(codec);
    const EncodeOptions encode = encode_options_from(codec);
    const SlopeOutcome outcome = model.search(SlopeModel::limit_of(16'000), encode);
    expect_filled_or_explained(outcome, 16'000, kEnough);
    SectionCache cache;
    SilentProgress silent;
    EXPECT_EQ(encode_artifact(outcome.model, encode, cache, silent), outcome.artifact);
  }
}

// What a refusal names is what works.
TEST_F(SlopeBudgetTest, TheSmallestArtifactIsReached) {
  for (double scale : {1e-10, 1.0, 1e10}) {
    SCOPED_TRACE(scale);
    const SlopeModel model(budget_config(), quick_options(), [&](const std::string&, size_t, float weight) {
      return static_cast<float>(scale) * weight;
    });
    const uint64_t smallest = model.smallest_bytes(encode_);
    EXPECT_EQ(model.search(SlopeModel::limit_of(smallest), encode_).artifact.size(), smallest);
    expect_error<CheckError>([&] { model.search(SlopeModel::limit_of(smallest - 1), encode_); },
                             {"smallest artifact takes " + bytes_text(smallest)});
  }
}

}  // namespace
}  // namespace thimble::slope_budget_test
