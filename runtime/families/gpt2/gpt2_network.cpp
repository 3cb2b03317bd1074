// gpt2_network.cpp: see gpt2_family.h.
#include "runtime/families/gpt2/gpt2_family.h"

#include "runtime/ops/ops.h"

namespace thimble {
namespace {

std::vector<Parameter> parameters_of(const Gpt2Config& config) {
  std::vector<Parameter> parameters;
  for (const auto& [name, shape] : gpt2_tensor_shapes(config)) {
    Role role = is_gpt2_projection(name) ? Role::kLinear : is_gpt2_matrix(name) ? Role::kTable : Role::kSmall;
    if (name == kGpt2Head) role = Role::kHead;
    parameters.push_back({name, shape, role});
  }
  return parameters;
}

}  // namespace

Network gpt2_network(const Gpt2Config& c) {
  Ops ops(parameters_of(c));
  const int64_t width = c.model_dim;
  auto norm = [&](Value x, const std::string& name) {
    return ops.layer_norm(x, ops.vector(name), ops.vector(bias_name(name)), static_cast<float>(c.norm_epsilon));
  };
  auto project = [&](Value x, const std::string& name) { return ops.linear(x, name, ops.vector(bias_name(name))); };

  // One after the other: which of two arguments is written first, is the compiler's choice.
  const Value tokens = ops.gather(kGpt2TokenEmbedding);
  const Value positions = ops.gather(kGpt2PositionEmbedding, {RowIndex::Kind::kPosition});
  Value x = ops.add(tokens, positions, Sum::kEmbedding);
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    ops.begin_layer(layer);
    const Gpt2LayerNames names(layer);
    const Value qkv = project(norm(x, names.attention_norm), names.query_key_value);
    const Value q = ops.columns(qkv, 0, width), k = ops.columns(qkv, width, width),
                v = ops.columns(qkv, 2 * width, width);
    const Value y = ops.attention(q, k, v, {.heads = c.num_heads, .kv_heads = c.num_heads, .head_dim = c.head_dim()});
    x = ops.add(x, project(y, names.attention_output), Sum::kAttention);
    const Value wide = project(norm(x, names.mlp_norm), names.up);
    x = ops.add(x, project(ops.activate(Activation::kGeluTanh, wide), names.down), Sum::kMlp);
  }
  return std::move(ops).head(norm(x, kGpt2FinalNorm), head_name(c));
}

Description gpt2_description(const Gpt2Config& config) {
  return {std::make_shared<const Network>(gpt2_network(config)), config.num_positions};
}

}  // namespace thimble
