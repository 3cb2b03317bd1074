// slope_model.h: a random golf-gpt with made-up losses, ready for searches of the method `slope`.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "quantizer/methods/slope/slope_search.h"
#include "tests/runtime/families/golf/random_model.h"

namespace thimble {

// Two layers with every option on; `side` is the width of bigrams and value embeddings.
inline GolfConfig two_layer_config(int64_t width, double mlp_mult, int64_t vocabulary, int64_t side) {
  GolfConfig config = small_golf_config();
  config.num_layers = 2;
  config.ve_layers = {1};
  config.model_dim = width;
  config.mlp_mult = mlp_mult;
  config.rope_dims = width / 8;
  config.vocab_size = vocabulary;
  config.ve_dim = side;
  config.bigram_dim = side;
  return config;
}

// Hessians of inputs whose columns differ in size and depend on each other; tables without one.
inline std::map<std::string, MatrixLoss> made_up_losses(const OwnedTensors& tensors, bool equal_rows = false) {
  std::map<std::string, MatrixLoss> losses;
  for (const auto& [name, tensor] : tensors) {
    if (!is_golf_matrix(name)) continue;
    const int64_t rows = tensor.shape[0], columns = tensor.shape[1];
    MatrixLoss& loss = losses[name];
    for (int64_t k = 0; k < columns; ++k) loss.diagonal.push_back(1.0 / static_cast<double>(k + 1));
    for (int64_t r = 0; r < rows; ++r) loss.row_weights.push_back(equal_rows ? 1 : 1 + static_cast<double>(r % 3));
    if (name.ends_with("embed.weight")) continue;
    SymmetricMatrix hessian(columns);
    for (int64_t i = 0; i < columns; ++i)
      for (int64_t j = 0; j <= i; ++j)
        hessian.lower_row(i)[j] = (i == j ? 1 : 0.3) / std::sqrt(static_cast<double>((i + 1) * (j + 1)));
    loss.hessian = store_in_memory(std::move(hessian));
  }
  return losses;
}

// What searches run on. `change` is made to every weight (r, k) of every matrix.
using WeightChange = std::function<float(const std::string& name, size_t index, float weight)>;

struct SlopeModel {
  static constexpr int64_t kSequences = 9, kLength = 49;

  SlopeModel(const GolfConfig& model_config, const SlopeOptions& options, const WeightChange& change = {},
             bool equal_rows = false, const SharedWork* shared = nullptr)
      : work(shared ? *shared : alone),
        config(model_config),
        tensors(changed(random_golf_tensors(config, 3), change)),
        layers(views, made_up_losses(tensors, equal_rows), options, device, work, /*key=*/7, progress),
        original(std::make_shared<const Weights>(
            bind_weights(std::make_shared<const Network>(golf_network(config)), float_tensors(views)))) {
    fixed.config_json = canonical_json(to_json(config));
    for (const auto& [name, tensor] : tensors)
      if (!is_golf_matrix(name))
        fixed.tensors.push_back(
            {name, tensor.shape, RawTensor{DType::kF16, from_float32(DType::kF16, to_float32(tensor.view()))}});
    tokens = {kSequences, kLength, random_tokens(kSequences * kLength, config.vocab_size, 4)};
  }

  static OwnedTensors changed(OwnedTensors tensors, const WeightChange& change) {
    for (auto& [name, tensor] : tensors) {
      if (!change || !is_golf_matrix(name)) continue;
      std::vector<float> values = to_float32(tensor.view());
      for (size_t i = 0; i < values.size(); ++i) values[i] = change(name, i, values[i]);
      tensor.bytes = from_float32(tensor.dtype, values);
    }
    return tensors;
  }

  DistillInput distill_input() const { return {original, tokens, device, {16, 3, 4e-3, 4e-3}, work, 7}; }

  static SlopeTarget limit_of(uint64_t bytes) {
    SlopeTarget target;
    target.limit_bytes = bytes;
    return target;
  }

  // The outcome decodes to what it says.
  SlopeOutcome search(const SlopeTarget& target, const EncodeOptions& encode, const DistillInput* distill = nullptr,
                      const GapMeter& gap = {}, bool crosses = false, const SmallSteps& small = {}) const {
    StageTimes times;
    SilentProgress silent;
    const std::unique_ptr<PairedModels> pairs = make_paired_models(original, tokens, kSequences, device, work.ranks());
    const CrossTerms cross_terms{*pairs, fixed, layers, times};
    Encoder encoder(work, &times);
    const SlopeTools tools = {layers, encode, encoder, times, silent, small};
    const std::unique_ptr<Teacher> teacher = distill ? make_teacher(*distill) : nullptr;
    SlopeOutcome outcome = SlopeSearch(fixed, tools, crosses ? &cross_terms : nullptr, teacher.get(), gap).run(target);
    EXPECT_EQ(decode_artifact(outcome.artifact, "artifact"), outcome.model);
    return outcome;
  }

  // What makes the smallest artifact that there can be: no codes but 0.
  QuantizedModel zeros() const {
    QuantizedModel zeros = fixed;
    for (QuantizedTensor& tensor : layers.zeros()) zeros.tensors.push_back(std::move(tensor));
    std::ranges::sort(zeros.tensors, {}, &QuantizedTensor::name);
    return zeros;
  }

  uint64_t smallest_bytes(const EncodeOptions& encode) const {
    SectionCache cache;
    SilentProgress silent;
    return encode_artifact(zeros(), encode, cache, silent).size();
  }

  WorkFolder nowhere{""};
  std::unique_ptr<Ranks> single = make_single_rank();
  SharedWork alone{nowhere, *single};
  const SharedWork& work;
  GolfConfig config;
  OwnedTensors tensors;
  TensorMap views = views_of(tensors);
  Device device;
  SilentProgress progress;
  SlopeLayers layers;
  QuantizedModel fixed;
  std::shared_ptr<const Weights> original;
  TokenSequences tokens;
};

}  // namespace thimble
