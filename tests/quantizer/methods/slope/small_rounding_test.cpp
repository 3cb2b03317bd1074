// small_rounding_test.cpp: small tensors of what is searched for and tuned are rounded, by their loss, and take less.
#include "quantizer/methods/slope/small_rounding.h"

#include <gtest/gtest.h>

#include <cmath>

#include "quantizer/methods/slope/distill.h"
#include "tests/quantizer/methods/slope/slope_model.h"

namespace thimble::small_rounding_test {
namespace {

QuantizedTensor raw_tensor(const std::string& name, DType dtype, const std::vector<float>& values) {
  return {name, {static_cast<int64_t>(values.size())}, RawTensor{dtype, from_float32(dtype, values)}};
}

// Raw tensors that are not multiples of their step.
std::vector<std::string> unrounded(const QuantizedModel& model, const SmallExponents& exponents) {
  std::vector<std::string> names;
  for (const QuantizedTensor& tensor : model.tensors)
    if (const auto found = exponents.find(tensor.name); found != exponents.end()) {
      const std::vector<float> values = dequantize(tensor);
      if (rounded_to_steps(values, found->second) != values) names.push_back(tensor.name);
    }
  return names;
}

uint64_t raw_bytes(const ByteVector& artifact) {
  uint64_t bytes = 0;
  for (const SectionSummary& section : describe_artifact(artifact, "artifact").sections)
    if (section.kind == "raw") bytes += section.stored_bytes;
  return bytes;
}

class SmallRoundingTest : public ::testing::Test {
 protected:
  SmallSteps steps() { return small_steps(measured_small_fisher(input_, progress_), {}, model_.fixed); }

  SmallRoundingTest() : input_(model_.distill_input()) {}

  SlopeModel model_{two_layer_config(64, 3, 150, 16), {}};
  DistillInput input_;
  EncodeOptions encode_ = encode_options_from("rans");
  SilentProgress progress_;
};

TEST_F(SmallRoundingTest, TensorsKeepTheirTypesAndOthersTheirValues) {
  QuantizedModel model;
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32})
    model.tensors.push_back(raw_tensor(std::string(dtype_name(dtype)), dtype, {0.3F, -1.1F}));
  model.tensors.push_back(raw_tensor("other", DType::kF16, {0.3F}));
  const QuantizedModel rounded = with_rounded_small(model, {{"F16", -2}, {"BF16", -2}, {"F32", -2}, {"not there", 3}});
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(dequantize(rounded.tensors[i]), (std::vector<float>{0.25F, -1}));
    EXPECT_EQ(std::get<RawTensor>(rounded.tensors[i].data).dtype, std::get<RawTensor>(model.tensors[i].data).dtype);
  }
  EXPECT_EQ(rounded.tensors[3], model.tensors[3]);
}

TEST_F(SmallRoundingTest, NothingIsRoundedToInfinity) {
  QuantizedModel model;
  model.tensors.push_back(raw_tensor("large", DType::kF16, {65504, 3}));
  EXPECT_EQ(with_rounded_small(model, {{"large", 7}}), model);
}

TEST_F(SmallRoundingTest, SmallMatricesFollowTheirLoss) {
  QuantizedModel model;
  model.tensors.push_back(raw_tensor("matrix", DType::kF16, std::vector<float>(8, 1)));
  const std::map<std::string, MatrixLoss> losses = {{"matrix", {nullptr, {2, 6}, {3, 5}}}};
  EXPECT_EQ(small_steps({}, losses, model).at(-10), (SmallExponents{{"matrix", -13}}));
}

TEST_F(SmallRoundingTest, FewSequencesTellNothing) {
  const TokenSequences few = {kLeastFisherSequences, model_.tokens.length, model_.tokens.tokens};  // one is held out
  const DistillInput input = {model_.original, few, model_.device, {}, model_.work, 7};
  EXPECT_TRUE(measured_small_fisher(input, progress_).empty());
}

TEST_F(SmallRoundingTest, TheSearchRoundsByItsStep) {
  const SlopeTarget target = SlopeModel::limit_of(12'000);
  const SlopeOutcome plain = model_.search(target, encode_),
                     rounded = model_.search(target, encode_, nullptr, {}, false, steps());
  EXPECT_LT(raw_bytes(rounded.artifact), 0.8 * static_cast<double>(raw_bytes(plain.artifact)));
  EXPECT_LT(rounded.log2_c, plain.log2_c) << "codes get what is saved";
  EXPECT_TRUE(is_filled(rounded.artifact.size(), *target.limit_bytes));
  const SmallExponents exponents = steps().at(rounded.log2_c);
  EXPECT_GT(exponents.size(), 4);
  EXPECT_EQ(unrounded(rounded.model, exponents), std::vector<std::string>{});
}

TEST_F(SmallRoundingTest, WhatIsTunedIsRoundedBeforeItIsJudged) {
  const SlopeOutcome found = model_.search(SlopeModel::limit_of(12'000), encode_, nullptr, {}, false, steps());
  const SmallExponents exponents = steps().at(found.log2_c);
  const Distilled distilled = distill(input_, found.model, exponents, progress_);
  EXPECT_EQ(unrounded(distilled.model, exponents), std::vector<std::string>{});
  EXPECT_NE(small_tensors(distilled.model, *model_.original->network),
            small_tensors(found.model, *model_.original->network));
  EXPECT_NEAR(held_out_divergence(input_, distilled.model, progress_), distilled.report.divergence_after,
              1e-4 * distilled.report.divergence_after);
}

}  // namespace
}  // namespace thimble::small_rounding_test
