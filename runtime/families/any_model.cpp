// any_model.cpp: one answer per family.
#include "runtime/families/any_model.h"

#include <algorithm>

#include "runtime/families/golf/golf_layout.h"
#include "runtime/families/gpt2/gpt2_forward.h"

namespace thimble {
namespace {

const Gpt2Config* as_gpt2(const AnyConfig& config) { return std::get_if<Gpt2Config>(&config); }

std::vector<std::string> layer_names(const ModelConfig& config) {
  std::vector<std::string> all;
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const LayerNames names(i);
    all.insert(all.end(), {names.query, names.key, names.value, names.output, names.up, names.down});
  }
  if (config.bigram_vocab_size > 0) all.emplace_back(kBigramProjection);
  if (!config.ve_layers.empty()) all.emplace_back(kValueProjection);
  return all;
}

std::vector<std::string> layer_names(const Gpt2Config& config) {
  std::vector<std::string> all;
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const Gpt2LayerNames names(i);
    all.insert(all.end(), {names.query_key_value, names.attention_output, names.up, names.down});
  }
  return all;
}

Nvfp4Tensors nvfp4_tensors(const QuantizedModel& quantized, const std::vector<std::string>& names) {
  Nvfp4Tensors found;
  for (const QuantizedTensor& tensor : quantized.tensors)
    if (const auto* codes = std::get_if<Nvfp4Codes>(&tensor.data); codes && std::ranges::count(names, tensor.name))
      found[tensor.name] = *codes;
  return found;
}

}  // namespace

AnyConfig config_of(const AnyModel& model) {
  return std::visit([](const auto& m) -> AnyConfig { return m.config; }, model);
}

bool has_gradients(const AnyConfig& config) { return !as_gpt2(config); }

int64_t vocab_size(const AnyConfig& config) {
  return std::visit([](const auto& c) { return c.vocab_size; }, config);
}

std::optional<int64_t> most_positions(const AnyConfig& config) {
  const Gpt2Config* gpt2 = as_gpt2(config);
  return gpt2 ? std::optional(gpt2->num_positions) : std::nullopt;
}

Json to_json(const AnyConfig& config) {
  return std::visit([](const auto& c) { return to_json(c); }, config);
}

std::vector<std::string> linear_layer_names(const AnyConfig& config) {
  return std::visit([](const auto& c) { return layer_names(c); }, config);
}

bool is_runnable_config(const Json& config) { return is_golf_config(config) || is_gpt2_config(config); }

AnyConfig resolve_any_config(const Json& given, const std::string& config_path, const TensorMap& tensors,
                             const std::string& checkpoint_path) {
  if (is_gpt2_config(given)) return resolve_gpt2_config(given, config_path, tensors, checkpoint_path);
  return resolve_model_config(given, config_path, tensors, checkpoint_path);
}

void check_context(const AnyConfig& config, int64_t context, const std::string& path) {
  std::optional<int64_t> most = most_positions(config);
  if (most && context > *most)
    throw UsageError(path + ": a context of " + std::to_string(context) + " tokens, at most " + std::to_string(*most) +
                     " are allowed, the positions that the model has embeddings of");
}

bool has_fused_forward(const AnyConfig& config, const Device& device) {
  return !as_gpt2(config) && has_fused_forward(device);
}

AnyModel rounded_model(const AnyModel& model, Numerics numerics) {
  AnyModel rounded = model;
  std::visit([&](auto& m) { round_weights(numeric_policy(numerics), m); }, rounded);
  return rounded;
}

Nvfp4Weights nvfp4_weights(const AnyModel& model) {
  return std::visit([](const auto& m) { return nvfp4_weights(m); }, model);
}

AnyModel bind_any_model(const AnyConfig& config, const TensorMap& tensors) {
  if (const Gpt2Config* gpt2 = as_gpt2(config)) return bind_gpt2_model(*gpt2, float_tensors(tensors));
  return bind_model(std::get<ModelConfig>(config), tensors);
}

AnyConfig quantized_any_config(const QuantizedModel& quantized, const std::string& path) {
  Json config = parse_json(as_bytes_of(quantized.config_json), path);
  return resolve_any_config(config, path, quantized_shapes(quantized), path);
}

AnyModel dequantize_any_model(const QuantizedModel& quantized, const std::string& path) {
  AnyConfig config = quantized_any_config(quantized, path);
  const Gpt2Config* gpt2 = as_gpt2(config);
  AnyModel model = gpt2 ? AnyModel(bind_gpt2_model(*gpt2, dequantize_tensors(quantized)))
                        : bind_model(std::get<ModelConfig>(config), dequantize_tensors(quantized));
  std::visit([&](auto& m) { m.nvfp4 = nvfp4_tensors(quantized, linear_layer_names(config)); }, model);
  return model;
}

std::unique_ptr<WindowScorer> make_window_scorer(const AnyModel& model, Backend& backend, int64_t context_length) {
  if (const auto* gpt2 = std::get_if<Gpt2Model>(&model))
    return std::make_unique<WindowScorer>(std::make_unique<Gpt2Forward>(*gpt2, backend, context_length));
  return std::make_unique<WindowScorer>(std::get<Model>(model), backend, context_length);
}

std::unique_ptr<LanguageModel> make_language_model(const AnyModel& model, const Device& device, int64_t context) {
  return std::visit([&](const auto& m) { return make_language_model(m, device, context); }, model);
}

}  // namespace thimble
