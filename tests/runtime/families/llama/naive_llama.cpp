// naive_llama.cpp: one position at a time wherever the definition allows. What a family does is decided by its name,
// not by the table of llama_config.cpp.
#include "tests/runtime/families/llama/naive_llama.h"

#include <cmath>
#include <complex>
#include <numbers>

#include "tests/runtime/families/naive_decoder.h"

namespace thimble {
namespace {

class NaiveLlama : NaiveDecoder {
 public:
  NaiveLlama(const LlamaConfig& config, const TensorMap& tensors, const NaiveEdit& edit)
      : NaiveDecoder(tensors, edit), c_(config), type_(config.variant->model_type) {}

  NaiveForward run(std::span<const Token> tokens) {
    NaiveRows x = look_up("model.embed_tokens.weight", tokens);
    for (NaiveRow& row : x)
      for (double& value : row) value *= is_gemma() ? std::sqrt(static_cast<double>(c_.model_dim)) : 1;
    for (int64_t layer = 0; layer < c_.num_layers; ++layer) {
      const std::string l = "model.layers." + std::to_string(layer) + ".";
      const NaiveRows h = norm(x, l + "input_layernorm.weight");
      const NaiveRows q = heads(project(h, l + "self_attn.q_proj"), l + "self_attn.q_norm.weight", layer);
      const NaiveRows k = heads(project(h, l + "self_attn.k_proj"), l + "self_attn.k_norm.weight", layer);
      const NaiveRows y = attention(q, k, project(h, l + "self_attn.v_proj"), layer);
      NaiveRows branch = project(y, l + "self_attn.o_proj");
      if (is_gemma()) branch = norm(branch, l + "post_attention_layernorm.weight");
      add(x, branch);
      const NaiveRows m =
          norm(x, l + (is_gemma() ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight"));
      NaiveRows gate = project(m, l + "mlp.gate_proj");
      const NaiveRows up = project(m, l + "mlp.up_proj");
      for (size_t p = 0; p < gate.size(); ++p)
        for (size_t i = 0; i < gate[p].size(); ++i) gate[p][i] = activation(gate[p][i]) * up[p][i];
      branch = project(gate, l + "mlp.down_proj");
      if (is_gemma()) branch = norm(branch, l + "post_feedforward_layernorm.weight");
      add(x, branch);
    }
    out_.head_input = norm(x, "model.norm.weight");
    out_.logits =
        multiply(out_.head_input, tensors_.contains("lm_head.weight") ? "lm_head.weight" : "model.embed_tokens.weight");
    return out_;
  }

 private:
  bool is_gemma() const { return type_ == "gemma3_text"; }

  // Of each `weight`'s width of columns.
  NaiveRows norm(NaiveRows x, const std::string& name) const {
    const NaiveRow weight = vector(name);
    for (NaiveRow& row : x)
      for (size_t first = 0; first < row.size(); first += weight.size()) {
        double squares = 0;
        for (size_t i = 0; i < weight.size(); ++i) squares += row[first + i] * row[first + i];
        const double inverse = 1 / std::sqrt(squares / static_cast<double>(weight.size()) + c_.norm_epsilon);
        for (size_t i = 0; i < weight.size(); ++i) row[first + i] *= inverse * (weight[i] + (is_gemma() ? 1 : 0));
      }
    return x;
  }

  // The rotation as multiplication of complex numbers by exp(i p f).
  NaiveRows heads(NaiveRows x, const std::string& norm_name, int64_t layer) const {
    if (type_ == "qwen3" || is_gemma()) x = norm(std::move(x), norm_name);
    const LlamaRope& rope = is_gemma() && c_.is_local[static_cast<size_t>(layer)] ? c_.local_rope : c_.rope;
    const auto d = static_cast<size_t>(c_.head_dim), half = d / 2;
    for (size_t p = 0; p < x.size(); ++p)
      for (size_t first = 0; first < x[p].size(); first += d)
        for (size_t k = 0; k < half; ++k) {
          const std::complex<double> before(x[p][first + k], x[p][first + half + k]);
          const auto after = before * std::polar(1.0, static_cast<double>(p) * frequency(rope, k));
          x[p][first + k] = after.real();
          x[p][first + half + k] = after.imag();
        }
    return x;
  }

  // As Hugging Face's modeling_rope_utils.py words it.
  double frequency(const LlamaRope& rope, size_t k) const {
    const double plain = 1 / std::pow(rope.theta, 2 * static_cast<double>(k) / static_cast<double>(c_.head_dim));
    if (rope.type == "linear") return plain / rope.factor;
    if (rope.type != "llama3") return plain;
    const double length = 2 * std::numbers::pi / plain, context = static_cast<double>(rope.original_positions);
    if (length < context / rope.high_frequency) return plain;
    if (length > context / rope.low_frequency) return plain / rope.factor;
    const double smooth = (context / length - rope.low_frequency) / (rope.high_frequency - rope.low_frequency);
    return (1 - smooth) * plain / rope.factor + smooth * plain;
  }

  NaiveRows attention(const NaiveRows& q, const NaiveRows& k, const NaiveRows& v, int64_t layer) const {
    const auto d = static_cast<size_t>(c_.head_dim), heads = static_cast<size_t>(c_.num_heads);
    const size_t group = heads / static_cast<size_t>(c_.num_kv_heads);
    const double divisor = std::sqrt(is_gemma() ? c_.query_scalar : static_cast<double>(d));
    NaiveRows out;
    for (size_t p = 0; p < q.size(); ++p) {
      NaiveRow mixed(heads * d);
      for (size_t h = 0; h < heads; ++h) {
        std::vector<std::pair<size_t, double>> weights;
        double sum = 0;
        for (size_t s = 0; s <= p; ++s) {
          if (c_.is_local[static_cast<size_t>(layer)] && p - s >= static_cast<size_t>(c_.window)) continue;
          double score = 0;
          for (size_t i = 0; i < d; ++i) score += q[p][h * d + i] * k[s][h / group * d + i];
          weights.emplace_back(s, std::exp(score / divisor));
          sum += weights.back().second;
        }
        for (const auto& [s, weight] : weights)
          for (size_t i = 0; i < d; ++i) mixed[h * d + i] += weight / sum * v[s][h / group * d + i];
      }
      out.push_back(mixed);
    }
    return out;
  }

  double activation(double z) const {
    if (!is_gemma()) return z / (1 + std::exp(-z));
    return 0.5 * z * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (z + 0.044715 * z * z * z)));
  }

  const LlamaConfig& c_;
  const std::string type_;
};

}  // namespace

NaiveForward naive_llama_forward(const LlamaConfig& config, const TensorMap& tensors, std::span<const Token> tokens,
                                 const NaiveEdit& edit) {
  return NaiveLlama(config, tensors, edit).run(tokens);
}

}  // namespace thimble
