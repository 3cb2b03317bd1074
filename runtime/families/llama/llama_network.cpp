// llama_network.cpp: see llama_family.h.
#include <cmath>

#include "runtime/families/llama/llama_family.h"
#include "runtime/ops/ops.h"

namespace thimble {
namespace {

std::vector<Parameter> parameters_of(const LlamaConfig& config) {
  std::vector<Parameter> parameters;
  for (const auto& [name, shape] : llama_tensor_shapes(config)) {
    Role role = shape.size() == 2 ? Role::kLinear : Role::kSmall;
    if (name == kLlamaEmbedding) role = Role::kTable;
    if (name == kLlamaHead) role = Role::kHead;
    parameters.push_back({name, shape, role});
  }
  return parameters;
}

// Column k turns towards column d / 2 + k, the other way round than RotaryRule has it.
RotaryRule rotary_of(const LlamaRope& rope, int64_t head_dim) {
  return {head_dim, [rope, head_dim](int64_t) {
            std::vector<double> frequencies = rope.frequencies(head_dim);
            for (double& frequency : frequencies) frequency = -frequency;
            return frequencies;
          }};
}

class Writer {
 public:
  explicit Writer(const LlamaConfig& config)
      : c_(config),
        ops_(parameters_of(config)),
        rotary_(ops_.rotary(rotary_of(config.rope, config.head_dim))),
        local_rotary_(variant_.is_gemma ? ops_.rotary(rotary_of(config.local_rope, config.head_dim)) : rotary_) {}

  Network write() && {
    x_ = ops_.gather(kLlamaEmbedding, {}, variant_.is_gemma ? std::sqrt(static_cast<float>(c_.model_dim)) : 1.0f);
    for (layer_ = 0; layer_ < c_.num_layers; ++layer_) {
      ops_.begin_layer(layer_);
      add(attention(norm(x_, name("input_layernorm.weight"))), "post_attention_layernorm.weight", Sum::kAttention);
      const char* before =
          variant_.has_post_norms ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight";
      add(mlp(norm(x_, name(before))), "post_feedforward_layernorm.weight", Sum::kMlp);
    }
    return std::move(ops_).head(norm(x_, kLlamaFinalNorm), c_.tie_embeddings ? kLlamaEmbedding : kLlamaHead);
  }

 private:
  std::string name(const std::string& member) const { return llama_name(layer_, member); }
  float epsilon() const { return static_cast<float>(c_.norm_epsilon); }

  Vector gain(const std::string& parameter, int64_t count) {
    return ops_.vector(VectorRule{.parameter = parameter, .count = count, .plus = variant_.is_gemma ? 1.0f : 0.0f});
  }
  Value norm(Value x, const std::string& parameter) {
    return ops_.rms_norm(x, {.epsilon = epsilon(), .gain = gain(parameter, c_.model_dim)});
  }
  Value linear(Value x, const std::string& member, bool has_bias) {
    return ops_.linear(x, name(member + ".weight"), has_bias ? ops_.vector(name(member + ".bias")) : Vector{});
  }
  void add(Value branch, const std::string& post_norm, Sum sum) {
    if (variant_.has_post_norms) branch = norm(branch, name(post_norm));
    x_ = ops_.add(x_, branch, sum);
  }

  Value heads(Value x, const std::string& norm) {
    op::Heads heads{.head_dim = c_.head_dim, .rotary = is_local() ? local_rotary_ : rotary_};
    if (variant_.has_head_norms) {
      heads.epsilon = epsilon();
      heads.norm_gain = gain(name(norm), c_.head_dim);
    }
    return ops_.heads(x, heads);
  }
  bool is_local() const { return c_.is_local[static_cast<size_t>(layer_)]; }

  Value attention(Value h) {
    const bool has_bias = c_.has_query_biases();
    const Value q = heads(linear(h, "self_attn.q_proj", has_bias), "self_attn.q_norm.weight");
    const Value k = heads(linear(h, "self_attn.k_proj", has_bias), "self_attn.k_norm.weight");
    const Value v = linear(h, "self_attn.v_proj", has_bias);
    const Value y = ops_.attention(q, k, v,
                                   {.heads = c_.num_heads,
                                    .kv_heads = c_.num_kv_heads,
                                    .head_dim = c_.head_dim,
                                    .scale = static_cast<float>(1 / std::sqrt(c_.query_scalar)),
                                    .window = is_local() ? c_.window : 0});
    return linear(y, "self_attn.o_proj", c_.attention_bias);
  }

  Value mlp(Value h) {
    const Value gate = linear(h, "mlp.gate_proj", c_.mlp_bias), up = linear(h, "mlp.up_proj", c_.mlp_bias);
    return linear(ops_.gate(variant_.activation, gate, up), "mlp.down_proj", c_.mlp_bias);
  }

  const LlamaConfig& c_;
  const LlamaVariant& variant_ = *c_.variant;
  Ops ops_;
  RotaryId rotary_, local_rotary_;
  int64_t layer_ = 0;
  Value x_;
};

}  // namespace

Network llama_network(const LlamaConfig& config) { return Writer(config).write(); }

Description llama_description(const LlamaConfig& config) {
  Description description{std::make_shared<const Network>(llama_network(config))};
  if (config.max_positions > 0) description.trained_positions = config.max_positions;
  return description;
}

}  // namespace thimble
