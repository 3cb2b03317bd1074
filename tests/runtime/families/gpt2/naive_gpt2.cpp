// naive_gpt2.cpp: one position at a time wherever the definition allows.
#include "tests/runtime/families/gpt2/naive_gpt2.h"

#include <cmath>
#include <numbers>

#include "tests/runtime/families/naive_decoder.h"

namespace thimble {
namespace {

class NaiveGpt2 : NaiveDecoder {
 public:
  NaiveGpt2(const Gpt2Config& config, const TensorMap& tensors, const NaiveEdit& edit)
      : NaiveDecoder(tensors, edit), c_(config) {}

  NaiveForward run(std::span<const Token> tokens) {
    std::vector<size_t> positions;
    for (size_t p = 0; p < tokens.size(); ++p) positions.push_back(p);
    NaiveRows x = look_up("transformer.wte.weight", tokens);
    add(x, look_up("transformer.wpe.weight", positions));
    for (int64_t layer = 0; layer < c_.num_layers; ++layer) {
      const std::string h = "transformer.h." + std::to_string(layer) + ".";
      add(x, project(attention(project(norm(x, h + "ln_1"), h + "attn.c_attn")), h + "attn.c_proj"));
      add(x, project(gelu(project(norm(x, h + "ln_2"), h + "mlp.c_fc")), h + "mlp.c_proj"));
    }
    out_.head_input = norm(x, "transformer.ln_f");
    out_.logits = multiply(out_.head_input, c_.tie_embeddings ? "transformer.wte.weight" : "lm_head.weight");
    return out_;
  }

 private:
  NaiveRows norm(const NaiveRows& x, const std::string& name) const {
    const NaiveRow weight = vector(name + ".weight"), bias = vector(name + ".bias");
    NaiveRows out;
    for (const NaiveRow& row : x) {
      const auto n = static_cast<double>(row.size());
      double mean = 0, variance = 0;
      for (double value : row) mean += value / n;
      for (double value : row) variance += (value - mean) * (value - mean) / n;
      NaiveRow normed;
      for (size_t i = 0; i < row.size(); ++i)
        normed.push_back((row[i] - mean) / std::sqrt(variance + c_.norm_epsilon) * weight[i] + bias[i]);
      out.push_back(normed);
    }
    return out;
  }

  NaiveRows attention(const NaiveRows& qkv) const {
    const auto width = static_cast<size_t>(c_.model_dim), d = width / static_cast<size_t>(c_.num_heads);
    NaiveRows out;
    for (size_t p = 0; p < qkv.size(); ++p) {
      NaiveRow mixed(width);
      for (size_t head = 0; head < width; head += d) {
        NaiveRow weights;
        double sum = 0;
        for (size_t s = 0; s <= p; ++s) {
          double score = 0;
          for (size_t i = 0; i < d; ++i) score += qkv[p][head + i] * qkv[s][width + head + i];
          weights.push_back(std::exp(score / std::sqrt(static_cast<double>(d))));
          sum += weights.back();
        }
        for (size_t s = 0; s <= p; ++s)
          for (size_t i = 0; i < d; ++i) mixed[head + i] += weights[s] / sum * qkv[s][2 * width + head + i];
      }
      out.push_back(mixed);
    }
    return out;
  }

  static NaiveRows gelu(NaiveRows x) {
    for (NaiveRow& row : x)
      for (double& z : row) z = 0.5 * z * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (z + 0.044715 * z * z * z)));
    return x;
  }

  const Gpt2Config& c_;
};

}  // namespace

NaiveForward naive_gpt2_forward(const Gpt2Config& config, const TensorMap& tensors, std::span<const Token> tokens,
                                const NaiveEdit& edit) {
  return NaiveGpt2(config, tensors, edit).run(tokens);
}

}  // namespace thimble
