// naive_gpt2.cpp: one position at a time wherever the definition allows.
#include "tests/runtime/families/gpt2/naive_gpt2.h"

#include <cmath>
#include <numbers>

namespace thimble {
namespace {

class NaiveGpt2 {
 public:
  NaiveGpt2(const Gpt2Config& config, const TensorMap& tensors, const NaiveEdit& edit)
      : c_(config), tensors_(tensors), edit_(edit) {}

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
  NaiveRow vector(const std::string& name) const {
    const std::vector<float> values = to_float32(tensors_.at(name));
    return {values.begin(), values.end()};
  }

  // The rows `index` of the table `name`.
  template <typename Index>
  NaiveRows look_up(const std::string& name, const Index& index) const {
    const NaiveRow table = vector(name);
    const auto width = static_cast<std::ptrdiff_t>(c_.model_dim);
    NaiveRows rows;
    for (auto i : index) {
      const auto first = table.begin() + static_cast<std::ptrdiff_t>(i) * width;
      rows.emplace_back(first, first + width);
    }
    if (edit_) edit_("lookup " + name, rows);
    return rows;
  }

  static void add(NaiveRows& x, const NaiveRows& branch) {
    for (size_t p = 0; p < x.size(); ++p)
      for (size_t i = 0; i < x[p].size(); ++i) x[p][i] += branch[p][i];
  }

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

  NaiveRows multiply(const NaiveRows& x, const std::string& name) const {
    const NaiveRow weight = vector(name);
    NaiveRows out;
    for (const NaiveRow& row : x) {
      NaiveRow product;
      for (size_t first = 0; first < weight.size(); first += row.size()) {
        double sum = 0;
        for (size_t k = 0; k < row.size(); ++k) sum += weight[first + k] * row[k];
        product.push_back(sum);
      }
      out.push_back(product);
    }
    if (edit_) edit_(name, out);
    return out;
  }

  NaiveRows project(const NaiveRows& x, const std::string& name) {
    const NaiveRow bias = vector(name + ".bias");
    out_.linear_inputs[name + ".weight"] = x;
    NaiveRows out = multiply(x, name + ".weight");
    for (NaiveRow& row : out)
      for (size_t i = 0; i < row.size(); ++i) row[i] += bias[i];
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
  const TensorMap& tensors_;
  const NaiveEdit& edit_;
  NaiveForward out_;
};

}  // namespace

NaiveForward naive_gpt2_forward(const Gpt2Config& config, const TensorMap& tensors, std::span<const Token> tokens,
                                const NaiveEdit& edit) {
  return NaiveGpt2(config, tensors, edit).run(tokens);
}

}  // namespace thimble
