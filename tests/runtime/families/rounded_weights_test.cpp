// rounded_weights_test.cpp: weights as numeric modes have them on load.
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/families/model_weights.h"
#include "runtime/ops/numeric_policy.h"
#include "tests/runtime/base/error_matcher.h"
#include "tests/runtime/codes/random_nvfp4.h"
#include "tests/runtime/families/family_models.h"
#include "tests/runtime/families/gpt2/random_gpt2.h"
#include "tests/runtime/ops/changed_matrix.h"

namespace thimble::rounded_weights_test {
namespace {

class RoundWeights : public ::testing::TestWithParam<FamilyCase> {
 protected:
  const FamilyModel model_ = GetParam().make();
};
INSTANTIATE_TEST_SUITE_P(Families, RoundWeights, ::testing::ValuesIn(undecided_cases()),
                         [](const auto& test) { return test.param.name; });

TEST_P(RoundWeights, NothingIsCopiedInFp32) {
  EXPECT_EQ(rounded_weights(model_.weights, numeric_policy(Numerics::kFp32)), model_.weights);
  for (Numerics numerics : kAllNumerics)
    if (numerics != Numerics::kFp32) {
      EXPECT_NE(rounded_weights(model_.weights, numeric_policy(numerics)), model_.weights);
    }
}

TEST_P(RoundWeights, MatricesAreRoundedAndInSf16VectorsToo) {
  for (Numerics numerics : {Numerics::kSf16Q115, Numerics::kBf16, Numerics::kFp16}) {
    const NumericPolicy policy = numeric_policy(numerics);
    const auto found = rounded_weights(model_.weights, policy);
    auto expect_rounded = [&](std::span<const float> now, std::span<const float> before) {
      ASSERT_EQ(now.size(), before.size());
      for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(now[i], policy.weights(before[i]));
    };
    for (size_t i = 0; i < found->matrices.size(); ++i)
      expect_rounded(values_of(found->matrices[i]), values_of(model_.weights->matrices[i]));
    ASSERT_EQ(found->vectors.size(), model_.weights->vectors.size());
    if (is_sf16(numerics))
      for (size_t i = 0; i < found->vectors.size(); ++i) expect_rounded(found->vectors[i], model_.weights->vectors[i]);
    else
      EXPECT_EQ(found->vectors, model_.weights->vectors);
    EXPECT_EQ(found->small, model_.weights->small);  // as stored
  }
}

TEST_P(RoundWeights, Nvfp4IsForTheMatricesOfLinearLayers) {
  const Network& network = model_.network();
  const auto found = rounded_weights(model_.weights, numeric_policy(Numerics::kNvfp4));
  const std::vector<MatrixId> linear = network.linear_matrices();
  EXPECT_EQ(found->vectors, model_.weights->vectors);
  for (MatrixId id = 0; id < static_cast<MatrixId>(network.matrices.size()); ++id) {
    SCOPED_TRACE(network.matrix(id).name);
    const Matrix now = found->matrix(id).widened(), before = model_.weights->matrix(id).widened();
    const bool is_linear = std::ranges::find(linear, id) != linear.end();
    EXPECT_EQ(found->is_in_nvfp4(id), is_linear);
    const Matrix expected = is_linear ? dequantize_nvfp4(stage_nvfp4(before), before.rows(), before.cols()) : before;
    for (size_t i = 0; i < now.values().size(); ++i)
      ASSERT_EQ(now.values()[i], rounded_to(Format::kBf16, expected.values()[i])) << i;
    if (!is_linear) continue;
    double error = 0, energy = 0;
    for (size_t i = 0; i < before.values().size(); ++i) {
      error += std::pow(now.values()[i] - before.values()[i], 2);
      energy += std::pow(before.values()[i], 2);
    }
    EXPECT_GT(error, 1e-4 * energy);
    EXPECT_LT(error, 0.02 * energy);
  }
  Weights twice = *found;
  round_weights(numeric_policy(Numerics::kNvfp4), twice);
  for (size_t i = 0; i < twice.matrices.size(); ++i)
    EXPECT_EQ(values_of(twice.matrices[i]), values_of(found->matrices[i])) << i;
  Weights damaged = *model_.weights;
  change_matrix(damaged, linear[2], [](Matrix& matrix) { matrix.values()[5] = INFINITY; });
  expect_error<Error>([&] { round_weights(numeric_policy(Numerics::kNvfp4), damaged); },
                      {network.matrix(linear[2]).name});
}

// The scales of GPTQ's codes are not those of rounding to nearest.
TEST(ArtifactInNvfp4, ItsCodesStay) {
  const Gpt2Config config = small_gpt2_config();
  const std::string coded_name = Gpt2LayerNames(1).up, raw_name = Gpt2LayerNames(1).down;
  Nvfp4Codes codes;
  QuantizedModel quantized;
  quantized.config_json = canonical_json(to_json(config));
  for (const auto& [name, tensor] : random_gpt2_tensors(config)) {
    quantized.tensors.push_back({name, tensor.shape, RawTensor{tensor.dtype, tensor.bytes}});
    if (name == coded_name)
      quantized.tensors.back().data = codes = random_nvfp4(tensor.shape[0], tensor.shape[1], 7, 2);
  }
  const RunnableModel model = dequantize_model(quantized, "model.thmb");
  const Network& network = *model.spec.network;
  const MatrixId coded = network.id_of(coded_name), raw = network.id_of(raw_name);
  for (MatrixId id = 0; id < static_cast<MatrixId>(network.matrices.size()); ++id)
    EXPECT_EQ(model.weights->is_in_nvfp4(id), id == coded);
  const Matrix values = model.weights->matrix(coded).widened();
  EXPECT_TRUE(std::ranges::equal(values.values(), dequantize_nvfp4(codes, values.rows(), values.cols()).values()));
  Weights rounded = *model.weights;
  round_weights(numeric_policy(Numerics::kNvfp4), rounded);
  const Matrix found = rounded.matrix(coded).widened();
  for (size_t i = 0; i < values.values().size(); ++i)
    ASSERT_EQ(found.values()[i], rounded_to(Format::kBf16, values.values()[i])) << i;
  EXPECT_TRUE(rounded.is_in_nvfp4(raw));
}

}  // namespace
}  // namespace thimble::rounded_weights_test
