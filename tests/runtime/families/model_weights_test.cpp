// model_weights_test.cpp: runnable models from tensors and from codes, and what of an artifact is refused.
#include "runtime/families/model_weights.h"

#include <gtest/gtest.h>

#include "tests/runtime/base/error_matcher.h"
#include "tests/runtime/codes/random_nvfp4.h"
#include "tests/runtime/families/family_models.h"
#include "tests/runtime/families/golf/random_model.h"
#include "tests/runtime/families/gpt2/random_gpt2.h"

namespace thimble {
namespace {

// Raw tensors with a config.
QuantizedModel raw_model(const Json& config, const OwnedTensors& tensors) {
  QuantizedModel model;
  model.config_json = canonical_json(config);
  for (const auto& [name, tensor] : tensors)
    model.tensors.push_back({name, tensor.shape, RawTensor{tensor.dtype, tensor.bytes}});
  return model;
}

// The small golf-gpt.
QuantizedModel sample() { return raw_model(to_json(small_golf_config()), random_golf_tensors(small_golf_config())); }

QuantizedTensor& tensor_of(QuantizedModel& model, const std::string& name) {
  return *std::ranges::find(model.tensors, name, &QuantizedTensor::name);
}

TEST(ModelWeights, DequantizedModelsHoldTheValues) {
  QuantizedModel quantized = sample();
  RowScaledCodes codes{15, std::vector<int8_t>(24 * 24, int8_t{-3}), std::vector<uint16_t>(24, 0x3800)};
  tensor_of(quantized, "blocks.1.attn.c_q.weight").data = codes;
  const RunnableModel model = dequantize_model(quantized, "model.thmb");
  const auto original = random_golf_weights(small_golf_config());
  EXPECT_EQ(canonical_json(model.spec.config), quantized.config_json);
  auto matrix = [&](const Weights& weights, const std::string& name) {
    return weights.matrix(model.spec.network->id_of(name)).values();
  };
  for (float value : matrix(*model.weights, "blocks.1.attn.c_q.weight")) ASSERT_EQ(value, -1.5f);
  EXPECT_TRUE(std::ranges::equal(matrix(*model.weights, "blocks.0.attn.c_q.weight"),
                                 matrix(*original, "blocks.0.attn.c_q.weight")));
  EXPECT_EQ(model.weights->small, original->small);
  EXPECT_EQ(model.weights->vectors, original->vectors);
  EXPECT_EQ(model.weights->network, model.spec.network);
}

TEST(ModelWeights, OfAGpt2AreBoundToo) {
  const Gpt2Config config = small_gpt2_config();
  const OwnedTensors tensors = random_gpt2_tensors(config, 3);
  const RunnableModel model = dequantize_model(raw_model(to_json(config), tensors), "model.thmb");
  const auto expected = gpt2_weights(config, tensors);
  EXPECT_EQ(model.spec.family->name(), "gpt2");
  EXPECT_EQ(model.spec.most_positions, config.num_positions);
  EXPECT_EQ(model.spec.vocabulary(), config.vocab_size);
  EXPECT_EQ(model.weights->small, expected->small);
  ASSERT_EQ(model.weights->matrices.size(), expected->matrices.size());
  for (size_t i = 0; i < expected->matrices.size(); ++i)
    EXPECT_TRUE(std::ranges::equal(model.weights->matrices[i].values(), expected->matrices[i].values()));
}

// Of matrices that products read; a table in NVFP4 is looked up as values.
TEST(ModelWeights, CodesInNvfp4StayWithTheirMatrices) {
  QuantizedModel quantized = sample();
  const std::string coded = LayerNames(1).up, table = "tok_emb.weight";
  for (const std::string& name : {coded, table}) {
    QuantizedTensor& tensor = tensor_of(quantized, name);
    tensor.data = random_nvfp4(tensor.shape[0], tensor.shape[1], 7, 2);
  }
  const Spec spec = quantized_spec(quantized, "model.thmb");
  const Weights weights = dequantize_weights(spec, quantized);
  for (const QuantizedTensor& tensor : quantized.tensors) {
    if (!is_golf_matrix(tensor.name)) continue;
    const MatrixId id = spec.network->id_of(tensor.name);
    EXPECT_TRUE(std::ranges::equal(weights.matrix(id).values(), dequantize(tensor))) << tensor.name;
    ASSERT_EQ(weights.is_in_nvfp4(id), tensor.name == coded) << tensor.name;
  }
}

TEST(ModelWeights, SpecsNeedNoContents) {
  QuantizedModel quantized = sample();
  const Spec spec = quantized_spec(quantized, "model.thmb");
  for (QuantizedTensor& tensor : quantized.tensors)
    if (auto* raw = std::get_if<RawTensor>(&tensor.data)) raw->bytes.clear();
  const Spec again = quantized_spec(quantized, "model.thmb");
  EXPECT_EQ(again.config, spec.config);
  EXPECT_EQ(again.network->parameters.size(), spec.network->parameters.size());
}

TEST(ModelWeights, OfACheckpointAreItsTensors) {
  for (const FamilyCase& family : undecided_cases()) {
    SCOPED_TRACE(family.name);
    const FamilyModel model = family.make();
    Spec spec;
    spec.network = model.weights->network;
    const auto found = weights_of(spec, views_of(model.tensors));
    EXPECT_EQ(found->network, spec.network);
    EXPECT_EQ(found->small, model.weights->small);
    EXPECT_EQ(found->vectors, model.weights->vectors);
    for (size_t i = 0; i < found->matrices.size(); ++i)
      EXPECT_TRUE(std::ranges::equal(found->matrices[i].values(), model.weights->matrices[i].values()));
    EXPECT_TRUE(found->in_nvfp4.empty());
  }
}

TEST(ModelWeights, ModelsThatDoNotFitTheirConfigAreErrors) {
  auto expect_refused = [](const std::function<void(QuantizedModel&)>& damage,
                           std::initializer_list<std::string> words) {
    QuantizedModel model = sample();
    damage(model);
    expect_error<FormatError>([&] { dequantize_model(model, "model.thmb"); }, words);
  };
  expect_refused([](QuantizedModel& m) { m.config_json = "{}"; },
                 {"model.thmb", "\"unknown\" cannot be run", "'golf-gpt'"});
  expect_refused([](QuantizedModel& m) { m.config_json = R"({"architecture":"bert"})"; }, {"model.thmb", "bert"});
  expect_refused([](QuantizedModel& m) { m.config_json = "{"; }, {"model.thmb", "not valid JSON"});
  expect_refused([](QuantizedModel& m) { m.tensors.pop_back(); }, {"model.thmb", "ve_shared.scale"});
  expect_refused(
      [](QuantizedModel& m) {
        m.tensors.push_back({"zzz", {1}, RawTensor{DType::kF32, ByteVector(4)}});
      },
      {"model.thmb", "'zzz'"});
  expect_refused([](QuantizedModel& m) { tensor_of(m, "smear.gate").shape = {23}; }, {"smear.gate", "[23]", "[24]"});
  expect_refused(
      [](QuantizedModel& m) {
        tensor_of(m, "smear.gate").data = RawTensor{DType::kI8, ByteVector(24)};
      },
      {"smear.gate", "I8", "floating"});
}

}  // namespace
}  // namespace thimble
