// golf_network.cpp: embeddings of tokens and of pairs of tokens, smeared; layers whose input mixes the stream with the
// embeddings, U-shaped skips from the first half to the second, grouped-query attention with norms of queries and
// keys, value embeddings in some layers, exclusive attention in the last ones; softcapped logits.
#include "runtime/families/golf/golf_family.h"

#include <cmath>

#include "runtime/families/golf/golf_layout.h"
#include "runtime/ops/ops.h"

namespace thimble {
namespace {

constexpr float kEpsilon = 1.1920929e-7f;

std::vector<Parameter> parameters_of(const GolfConfig& config) {
  std::vector<Parameter> parameters;
  for (const auto& [name, shape] : golf_tensor_shapes(config)) {
    Role role = Role::kLinear;
    if (!is_golf_matrix(name)) role = Role::kSmall;
    if (name == kTokenEmbedding || name == kBigramEmbedding || name == kValueEmbedding) role = Role::kTable;
    if (name == "lm_head.weight") role = Role::kHead;
    parameters.push_back({name, shape, role});
  }
  return parameters;
}

// inverse_frequency(k) = base^(-2k / dims), the base raised for contexts beyond the trained one.
RotaryRule rotary_of(const GolfConfig& c) {
  auto frequencies = [c](int64_t context) {
    std::vector<double> all;
    for (int64_t k = 0; k < c.rope_dims / 2; ++k)
      all.push_back(
          std::pow(c.rope_base_at(context), -2.0 * static_cast<double>(k) / static_cast<double>(c.rope_dims)));
    return all;
  };
  return {c.rope_dims, frequencies};
}

class Writer {
 public:
  explicit Writer(const GolfConfig& config)
      : c_(config), ops_(parameters_of(config)), rotary_(ops_.rotary(rotary_of(config))) {}

  Network write() && {
    embed();
    for (int64_t layer = 0; layer < c_.num_layers; ++layer) {
      ops_.begin_layer(layer);
      open_layer(layer);
      attend(layer);
      feed_forward(layer);
      if (layer < c_.encoder_layers()) skips_.push_back(x_);
    }
    return std::move(ops_).head(norm(x_), head_name(c_), static_cast<float>(c_.logit_softcap));
  }

 private:
  Value norm(Value x, float factor = 1) { return ops_.rms_norm(x, {.epsilon = kEpsilon, .factor = factor}); }
  Vector sigmoid(VectorRule rule) {
    rule.sigmoid = true;
    return ops_.vector(rule);
  }
  float depth_scale(int64_t layer) const {
    return c_.ln_scale ? 1.0f / std::sqrt(static_cast<float>(layer + 1)) : 1.0f;
  }

  void embed() {
    x_ = ops_.gather(kTokenEmbedding);
    if (c_.bigram_vocab_size > 0) {
      const Value pairs = ops_.gather(kBigramEmbedding, {RowIndex::Kind::kTokenPair, c_.bigram_vocab_size});
      x_ = ops_.add(x_, ops_.linear(pairs, kBigramProjection), Sum::kEmbedding, ops_.vector("bigram.scale"));
    }
    x_ = norm(x_);
    if (c_.smear_gate) x_ = ops_.smear(x_, sigmoid({.parameter = "smear.gate", .count = c_.model_dim}));
    x0_ = x_;
    if (!c_.ve_layers.empty()) value_embedding_ = ops_.linear(ops_.gather(kValueEmbedding), kValueProjection);
  }

  // Decoder layer n/2 + j takes the skip that encoder layer n/2 - 1 - j left; with an odd number of layers the last has
  // none.
  void open_layer(int64_t layer) {
    const LayerNames names(layer);
    const int64_t decoder = layer - c_.encoder_layers();
    if (decoder >= 0 && decoder < c_.encoder_layers()) {
      const Vector gate = c_.skip_gates ? sigmoid(ops_.row("skip_gates", decoder)) : Vector{};
      x_ = ops_.skip(x_, skips_.back(), ops_.vector(ops_.row("skip_weights", decoder)), gate);
      skips_.pop_back();
    }
    x_ = ops_.mix(x_, ops_.vector(ops_.row(names.resid_mix, 0)), x0_, ops_.vector(ops_.row(names.resid_mix, 1)));
  }

  void attend(int64_t layer) {
    const LayerNames names(layer);
    const int64_t d = c_.head_dim();
    const Value h = norm(x_, depth_scale(layer));
    const Value q =
        ops_.heads(ops_.linear(h, names.query),
                   {.head_dim = d, .epsilon = kEpsilon, .rotary = rotary_, .head_gain = ops_.vector(names.q_gain)});
    const Value k = ops_.heads(ops_.linear(h, names.key), {.head_dim = d, .epsilon = kEpsilon, .rotary = rotary_});
    Value v = ops_.linear(h, names.value);
    for (size_t i = 0; i < c_.ve_layers.size(); ++i)
      if (c_.ve_layers[i] == layer) v = ops_.add(v, value_embedding_, Sum::kEmbedding, value_scale(i));
    const Value y = ops_.attention(q, k, v,
                                   {.heads = c_.num_heads,
                                    .kv_heads = c_.num_kv_heads,
                                    .head_dim = d,
                                    .exclusive = layer >= c_.num_layers - c_.xsa_last_n});
    x_ = ops_.add(x_, ops_.linear(y, names.output), Sum::kAttention, ops_.vector(names.attn_scale));
  }

  // A scale that all layers share, times the layer's own.
  Vector value_scale(size_t i) {
    return ops_.vector(
        VectorRule{.parameter = "ve_layer_scales." + std::to_string(i), .count = 1, .times = "ve_shared.scale"});
  }

  void feed_forward(int64_t layer) {
    const LayerNames names(layer);
    const Value wide = ops_.linear(norm(x_, depth_scale(layer)), names.up);
    const Value y = ops_.linear(ops_.activate(Activation::kLeakyReluSquared, wide), names.down);
    x_ = ops_.add(x_, y, Sum::kMlp, ops_.vector(names.mlp_scale));
  }

  const GolfConfig& c_;
  Ops ops_;
  RotaryId rotary_;
  Value x_, x0_, value_embedding_;
  std::vector<Value> skips_;
};

}  // namespace

Network golf_network(const GolfConfig& config) { return Writer(config).write(); }

Description golf_description(const GolfConfig& config) {
  return {std::make_shared<const Network>(golf_network(config))};
}

}  // namespace thimble
