// numeric_policy.cpp: the table of modes, and weights rounded on load.
#include "runtime/ops/numeric_policy.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "runtime/base/error.h"
#include "runtime/ops/linear_layers.h"
#include "runtime/tensor/row_chunks.h"

namespace thimble {
namespace {

constexpr float kLegacyLogitsScale = 24;
constexpr float kLegacyAttentionScale = 0.65f, kLegacyMlpScale = 0.75f;

NumericPolicy in_storage(Format format) {
  NumericPolicy policy;
  policy.roundings.fill({Format::kFp32, format});
  policy.weights.storage = format;
  return policy;
}

// Values lie in bf16, products sum in fp32.
NumericPolicy sf16_policy(Format product) {
  NumericPolicy policy = in_storage(Format::kBf16);
  for (Rounding& rounding : policy.roundings) rounding.value = Format::kQ115;
  for (Boundary boundary : {Boundary::kLinear, Boundary::kScores, Boundary::kSoftmax, Boundary::kLogits})
    policy.roundings[static_cast<size_t>(boundary)].value = product;
  policy.roundings[static_cast<size_t>(Boundary::kSoftmax)].value = Format::kQ115;
  // The loss reads logits in fp32: softcap is part of it.
  policy.roundings[static_cast<size_t>(Boundary::kCapped)] = {};
  return policy;
}

void round_values(const Rounding& rounding, std::span<float> values) {
  if (rounding.is_exact()) return;
  parallel_chunks(static_cast<int64_t>(values.size()), 65536, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) values[static_cast<size_t>(i)] = rounding(values[static_cast<size_t>(i)]);
  });
}

template <typename AnyFamily>
Nvfp4Weights by_address(const AnyFamily& model) {
  Nvfp4Weights found;
  for (const auto& [name, matrix] : linear_layers(model))
    if (auto codes = model.nvfp4.find(name); codes != model.nvfp4.end()) found[matrix->data()] = &codes->second;
  return found;
}

// Matrices that a file holds in NVFP4 stay as they are.
template <typename AnyFamily>
void take_to_nvfp4(AnyFamily& model) {
  for (const auto& [name, matrix] : linear_layers(model)) {
    if (model.nvfp4.contains(name)) continue;
    if (!std::ranges::all_of(matrix->values(), [](float value) { return std::isfinite(value); }))
      throw Error(ExitCode::kBadInput, "tensor '" + name + "' holds a value that is not finite, which NVFP4 has not");
    const Nvfp4Codes& codes = model.nvfp4[name] = stage_nvfp4(*matrix);
    *matrix = dequantize_nvfp4(codes, matrix->rows(), matrix->cols());
  }
}

}  // namespace

std::string_view numerics_name(Numerics numerics) {
  switch (numerics) {
    case Numerics::kFp32: return "fp32";
    case Numerics::kBf16: return "bf16";
    case Numerics::kFp16: return "fp16";
    case Numerics::kSf16: return "sf16";
    case Numerics::kSf16Q115: return "sf16-q115";
    case Numerics::kSf16Legacy: return "sf16-legacy";
    case Numerics::kSf16LegacyQ115: return "sf16-legacy-q115";
    case Numerics::kNvfp4: return "nvfp4";
  }
  return "";
}

bool is_sf16(Numerics numerics) { return numerics_name(numerics).starts_with("sf16"); }

std::string_view boundary_name(Boundary boundary) {
  switch (boundary) {
    case Boundary::kLinear: return "linear";
    case Boundary::kScores: return "scores";
    case Boundary::kSoftmax: return "softmax";
    case Boundary::kLogits: return "logits";
    case Boundary::kCapped: return "capped logits";
    case Boundary::kNorm: return "norm";
    case Boundary::kResidual: return "residual";
    case Boundary::kActivation: return "activation";
    case Boundary::kEmbedding: return "embedding";
  }
  return "";
}

bool NumericPolicy::is_exact() const { return *this == NumericPolicy{}; }

NumericPolicy numeric_policy(Numerics numerics) {
  NumericPolicy policy;
  switch (numerics) {
    case Numerics::kFp32: break;
    case Numerics::kBf16: return in_storage(Format::kBf16);
    case Numerics::kFp16: return in_storage(Format::kFp16);
    case Numerics::kSf16:
    case Numerics::kSf16Q115: policy = sf16_policy(Format::kQ131Q115); break;
    case Numerics::kSf16Legacy:
    case Numerics::kSf16LegacyQ115:
      policy = sf16_policy(Format::kQ115);
      policy.logits_scale = kLegacyLogitsScale;
      policy.attention_scale = kLegacyAttentionScale;
      policy.mlp_scale = kLegacyMlpScale;
      break;
    case Numerics::kNvfp4: policy.nvfp4 = true; break;
  }
  if (numerics == Numerics::kSf16Q115 || numerics == Numerics::kSf16LegacyQ115) policy.weights.value = Format::kQ115;
  return policy;
}

void round_weights(const NumericPolicy& policy, Model& model) {
  const Rounding& rounding = policy.weights;
  if (policy.nvfp4) return take_to_nvfp4(model);
  if (rounding.is_exact()) return;
  model.nvfp4.clear();
  for (Matrix* matrix : {&model.token_embedding, &model.untied_head, &model.bigram_embedding, &model.bigram_projection,
                         &model.value_embedding, &model.value_projection})
    round_values(rounding, matrix->values());
  model.bigram_scale = rounding(model.bigram_scale);
  round_values(rounding, model.smear_gate);
  for (LayerWeights& layer : model.layers) {
    for (Matrix* matrix : {&layer.query, &layer.output, &layer.key, &layer.value, &layer.up, &layer.down})
      round_values(rounding, matrix->values());
    for (std::vector<float>* vector : {&layer.q_gain, &layer.attn_scale, &layer.mlp_scale, &layer.mix_x, &layer.mix_x0,
                                       &layer.skip_weight, &layer.skip_gate})
      round_values(rounding, *vector);
    layer.value_embedding_scale = rounding(layer.value_embedding_scale);
  }
}

void round_weights(const NumericPolicy& policy, Gpt2Model& model) {
  const Rounding& rounding = policy.weights;
  if (policy.nvfp4) return take_to_nvfp4(model);
  if (rounding.is_exact()) return;
  model.nvfp4.clear();
  auto round_norm = [&](NormWeights& norm) {
    round_values(rounding, norm.weight);
    round_values(rounding, norm.bias);
  };
  auto round_affine = [&](AffineWeights& affine) {
    round_values(rounding, affine.weight.values());
    round_values(rounding, affine.bias);
  };
  for (Matrix* matrix : {&model.token_embedding, &model.position_embedding, &model.untied_head})
    round_values(rounding, matrix->values());
  for (Gpt2Layer& layer : model.layers) {
    round_norm(layer.attention_norm);
    round_norm(layer.mlp_norm);
    for (AffineWeights* affine : {&layer.query_key_value, &layer.attention_output, &layer.up, &layer.down})
      round_affine(*affine);
  }
  round_norm(model.final_norm);
}

Nvfp4Weights nvfp4_weights(const Model& model) { return by_address(model); }
Nvfp4Weights nvfp4_weights(const Gpt2Model& model) { return by_address(model); }

}  // namespace thimble
