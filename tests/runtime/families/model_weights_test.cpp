// model_weights_test.cpp: runnable models from tensors and from codes, and what of an artifact is refused.
#include "runtime/families/model_weights.h"

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/cpu/cpu_models.h"
#include "tests/runtime/base/error_matcher.h"
#include "tests/runtime/codes/random_nvfp4.h"
#include "tests/runtime/families/family_models.h"
#include "tests/runtime/families/golf/random_model.h"
#include "tests/runtime/families/gpt2/random_gpt2.h"
#include "tests/runtime/ops/changed_matrix.h"

namespace thimble::model_weights_test {
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
    return values_of(weights.matrix(model.spec.network->id_of(name)));
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
    EXPECT_TRUE(values_of(model.weights->matrices[i]) == values_of(expected->matrices[i]));
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
  const Weights weights = dequantize_weights(spec.network, quantized);
  for (const QuantizedTensor& tensor : quantized.tensors) {
    if (!is_golf_matrix(tensor.name)) continue;
    const MatrixId id = spec.network->id_of(tensor.name);
    EXPECT_TRUE(values_of(weights.matrix(id)) == dequantize(tensor)) << tensor.name;
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
      EXPECT_TRUE(values_of(found->matrices[i]) == values_of(model.weights->matrices[i]));
    EXPECT_TRUE(found->in_nvfp4.empty());
  }
}

// Of BF16 and F16 there is no float32 copy, nor of the mode that rounds to what they are.
TEST(ModelWeights, MatricesStayAsTheyAreStored) {
  for (const FamilyCase& family : undecided_cases())
    for (const auto& [dtype, numerics] : {std::pair{DType::kBF16, Numerics::kBf16}, {DType::kF16, Numerics::kFp16}}) {
      SCOPED_TRACE(family.name);
      const FamilyModel model = family.make();
      auto tensors = std::make_shared<OwnedTensors>(model.tensors);
      for (auto& [name, tensor] : *tensors)
        tensor = {dtype, tensor.shape, from_float32(dtype, to_float32(tensor.view()))};
      const std::weak_ptr<const OwnedTensors> alive = tensors;
      Spec spec;
      spec.network = model.weights->network;
      auto found = weights_of(spec, views_of(*tensors), tensors);
      FloatTensors values;
      for (const auto& [name, tensor] : *tensors) values[name] = to_float32(tensor.view());
      tensors.reset();
      const auto in_float32 = std::make_shared<const Weights>(bind_weights(spec.network, values));
      const auto rounded = rounded_weights(found, numeric_policy(numerics));
      for (const auto& weights : {found, rounded})
        for (size_t i = 0; i < weights->matrices.size(); ++i) {
          EXPECT_EQ(weights->matrices[i].dtype(), dtype);
          EXPECT_EQ(weights->matrices[i].owned_bytes(), 0u);
          EXPECT_EQ(values_of(weights->matrices[i]), values_of(in_float32->matrices[i]));
        }
      EXPECT_FALSE(alive.expired());
      const std::vector<Token> tokens = model.random_window();
      auto log_probabilities = [&](const std::shared_ptr<const Weights>& weights) {
        Matrix rows(model.window, model.vocabulary());
        make_cpu_scorer(weights, Numerics::kFp32, model.context)
            ->log_probabilities(std::span(tokens).first(tokens.size() - 1), rows);
        return std::vector<float>(rows.values().begin(), rows.values().end());
      };
      EXPECT_EQ(log_probabilities(found), log_probabilities(in_float32));
    }
}

// A model of codes gives what its values in float32 give.
TEST(ModelWeights, CodesAreReadAsTheirValues) {
  QuantizedModel quantized = sample();
  for (QuantizedTensor& tensor : quantized.tensors) {
    if (!is_golf_matrix(tensor.name)) continue;
    const std::vector<float> values = dequantize(tensor);
    SteppedCodes codes{2, {}, {}, {}};
    const auto rows = static_cast<size_t>(tensor.shape[0]), columns = values.size() / rows;
    for (size_t r = 0; r < rows; ++r) codes.row_steps.push_back(static_cast<int16_t>(r % 5));
    for (size_t k = 0; k < columns; ++k)
      codes.column_steps.push_back(static_cast<int16_t>(-448 + static_cast<int>(k % 7)));
    std::vector<int32_t> rounded;
    for (const float value : values) rounded.push_back(static_cast<int32_t>(std::lround(64 * value)));
    codes.codes = rounded;
    tensor.data = codes;
  }
  const RunnableModel model = dequantize_model(quantized, "model.thmb");
  const auto in_float32 =
      std::make_shared<const Weights>(bind_weights(model.spec.network, dequantize_tensors(quantized)));
  const std::vector<Token> tokens = random_tokens(12, model.spec.vocabulary());
  auto log_probabilities = [&](const std::shared_ptr<const Weights>& weights) {
    Matrix rows(static_cast<int64_t>(tokens.size()), model.spec.vocabulary());
    make_cpu_scorer(weights, Numerics::kFp32, 16)->log_probabilities(tokens, rows);
    return std::vector<float>(rows.values().begin(), rows.values().end());
  };
  EXPECT_TRUE(std::ranges::all_of(model.weights->matrices, [](const StoredMatrix& matrix) {
    return matrix.dtype() == DType::kI8 || matrix.dtype() == DType::kI16;
  }));
  EXPECT_EQ(log_probabilities(model.weights), log_probabilities(in_float32));
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
}  // namespace thimble::model_weights_test
