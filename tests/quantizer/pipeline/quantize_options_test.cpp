// quantize_options_test.cpp: what follows from the effort, the model's size and where the text comes from.
#include "quantizer/pipeline/quantize_options.h"

#include <gtest/gtest.h>

#include "quantizer/methods/effort.h"
#include "runtime/base/atomic_file.h"
#include "runtime/base/error.h"
#include "tests/runtime/base/error_matcher.h"
#include "tests/runtime/base/temporary_folder.h"
#include "tests/runtime/families/golf/random_model.h"

namespace thimble::quantize_options_test {
namespace {

class FinishedOptions : public ::testing::Test {
 protected:
  static constexpr int64_t kLength = 64;  // what the model was trained at

  // A small model, as if its first parameter made it this large.
  static Spec spec_of_size(int64_t parameters) {
    Network network = *random_golf_weights(small_golf_config(), 1)->network;
    for (size_t i = 1; i < network.parameters.size(); ++i) parameters -= element_count(network.parameters[i].shape);
    network.parameters.front().shape = {parameters};
    Spec spec;
    spec.network = std::make_shared<const Network>(std::move(network));
    return spec;
  }

  QuantizeRequest given_text() const {
    write_file_atomically(folder_.file("text.txt"), std::string_view("some text\n"));
    QuantizeRequest request;
    request.given_text.texts = {folder_.file("text.txt")};
    return request;
  }

  static QuantizeRequest finished(QuantizeRequest request, Effort effort, int64_t parameters) {
    request.asked_effort = effort;
    request.calibration.sequences = 0;
    request.calibration.length = kLength;
    finish_options(request, {MethodKind::kSlope}, "5,6", spec_of_size(parameters));
    return request;
  }

  TemporaryFolder folder_;
};

TEST_F(FinishedOptions, LargeModelsLearnGainsOfRowsWithTheirCodes) {
  for (const int64_t parameters : {kFreeCodes, kFreeCodes + 1}) {
    const bool is_large = parameters > kFreeCodes;
    EXPECT_EQ(finished({}, Effort::kBest, parameters).learns_rows, is_large);
    EXPECT_EQ(finished({}, Effort::kBest, parameters).codes.steps, 200);
    EXPECT_EQ(finished({}, Effort::kDefault, parameters).codes.steps, is_large ? 0 : 32);
    EXPECT_EQ(finished({}, Effort::kFast, parameters).codes.steps, 0);
  }
}

// Of given text every step has its own sequences, and sixteen are held out.
TEST_F(FinishedOptions, GivenTextHasSequencesForEveryStep) {
  EXPECT_EQ(finished(given_text(), Effort::kBest, 1'000'000).calibration.sequences, 200 * 32 + 16);
  EXPECT_EQ(finished(given_text(), Effort::kDefault, 1'000'000).codes.steps, 0);
  EXPECT_EQ(finished(given_text(), Effort::kDefault, 1'000'000).calibration.sequences, 128);
  EXPECT_EQ(finished({}, Effort::kBest, 1'000'000).calibration.sequences, 2048);
}

// What is compared is fitted to given text, and to text of its own only beyond the trained length.
TEST_F(FinishedOptions, WhatIsComparedDependsOnTheText) {
  const QuantizeRequest given = finished(given_text(), Effort::kFast, 1'000'000);
  EXPECT_EQ(given.data_share, std::nullopt);
  EXPECT_EQ(given.target_temperature, std::nullopt);
  const QuantizeRequest own = finished({}, Effort::kFast, 1'000'000);
  EXPECT_EQ(own.data_share, 0);
  EXPECT_EQ(own.target_temperature, 1);

  QuantizeRequest asked = given_text();
  asked.data_share = 0.3;
  EXPECT_EQ(finished(asked, Effort::kFast, 1'000'000).data_share, 0.3);
  asked.given_text = {};
  expect_error<UsageError>([&] { finished(asked, Effort::kFast, 1'000'000); }, {"--data-share needs text"});
}

}  // namespace
}  // namespace thimble::quantize_options_test
