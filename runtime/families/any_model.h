// any_model.h: a model of one of the families that run: golf-gpt (model.h) or GPT-2 (gpt2_model.h).
// What loads, scores, generates and calibrates takes either; gradients are golf-gpt's alone.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runtime/codes/quantized_model.h"
#include "runtime/cpu/window_scores.h"
#include "runtime/device/device.h"
#include "runtime/families/golf/model.h"
#include "runtime/families/gpt2/gpt2_model.h"

namespace thimble {

using AnyConfig = std::variant<ModelConfig, Gpt2Config>;
using AnyModel = std::variant<Model, Gpt2Model>;

constexpr const char* kRunnableFamilies = "'golf-gpt' and 'gpt2'";

AnyConfig config_of(const AnyModel& model);
int64_t vocab_size(const AnyConfig& config);
// Sequences longer than this cannot be run; nullopt: of any length.
std::optional<int64_t> most_positions(const AnyConfig& config);
Json to_json(const AnyConfig& config);

// Is there a backward pass? Without one: no Fisher and no distillation.
bool has_gradients(const AnyConfig& config);

// The matrices that have Hessians after calibration, by name: all that multiply activations, below the output head.
std::vector<std::string> linear_layer_names(const AnyConfig& config);

// Does a config name one of the families?
bool is_runnable_config(const Json& config);

// resolve_model_config() or resolve_gpt2_config(), as the config says; one of another family is golf-gpt's error.
AnyConfig resolve_any_config(const Json& given, const std::string& config_path, const TensorMap& tensors,
                             const std::string& checkpoint_path);

// A UsageError when a context of this many tokens is too long for the model of `path`.
void check_context(const AnyConfig& config, int64_t context, const std::string& path);

// Does the model run through the device's fused kernels (device.h)? Then memory is planned, and artifacts are unpacked
// there.
bool has_fused_forward(const AnyConfig& config, const Device& device);

AnyModel bind_any_model(const AnyConfig& config, const TensorMap& tensors);

// quantized_config() and dequantize_model() of either family, with their errors.
AnyConfig quantized_any_config(const QuantizedModel& quantized, const std::string& path);
AnyModel dequantize_any_model(const QuantizedModel& quantized, const std::string& path);

// The model with its weights as a mode has them (round_weights()).
AnyModel rounded_model(const AnyModel& model, Numerics numerics);

Nvfp4Weights nvfp4_weights(const AnyModel& model);

// A scorer over a Backend; `model` and `backend` must outlive it.
std::unique_ptr<WindowScorer> make_window_scorer(const AnyModel& model, Backend& backend, int64_t context_length);

// `model` must outlive the result. check_context() must have passed.
std::unique_ptr<LanguageModel> make_language_model(const AnyModel& model, const Device& device, int64_t context);

}  // namespace thimble
