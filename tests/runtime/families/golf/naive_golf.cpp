// naive_golf.cpp: one function per part of the model, one position at a time wherever the definition allows.
#include "tests/runtime/families/golf/naive_golf.h"

#include <cmath>

#include "tests/runtime/families/naive_decoder.h"

namespace thimble {
namespace {

double sigma(double z) { return 1 / (1 + std::exp(-z)); }

class NaiveGolf : NaiveDecoder {
 public:
  NaiveGolf(const GolfConfig& config, const TensorMap& tensors, std::span<const Token> tokens, int64_t context,
            const NaiveEdit& edit)
      : NaiveDecoder(tensors, edit), c_(config), tokens_(tokens), context_(context) {}

  NaiveForward run() {
    NaiveRows x = embed();
    const NaiveRows x0 = x;
    int64_t half = c_.num_layers / 2;
    std::vector<NaiveRows> stack;
    for (int64_t layer = 0; layer < c_.num_layers; ++layer) {
      int64_t j = layer - half;
      if (j >= 0 && j < half) {
        add_skip(stack.back(), j, x);
        stack.pop_back();
      }
      x = block(layer, x, x0);
      if (layer < half) stack.push_back(x);
    }
    out_.head_input = scaled_norm(x, 1);
    out_.logits = multiply(out_.head_input, c_.tie_embeddings ? "tok_emb.weight" : "lm_head.weight");
    for (NaiveRow& row : out_.logits)
      for (double& logit : row) logit = c_.logit_softcap * std::tanh(logit / c_.logit_softcap);
    return out_;
  }

 private:
  static NaiveRow rms(const NaiveRow& x) {
    const double scale = 1 / std::sqrt(dot(x, x) / static_cast<double>(x.size()) + 1.1920929e-7);
    NaiveRow y;
    for (double value : x) y.push_back(value * scale);
    return y;
  }

  NaiveRows embed() {
    NaiveRows x = look_up("tok_emb.weight", tokens_);
    if (c_.bigram_vocab_size > 0) add_bigrams(x);
    for (NaiveRow& row : x) row = rms(row);
    if (!c_.smear_gate) return x;
    const NaiveRow gate = vector("smear.gate");
    NaiveRows smeared = x;
    for (size_t p = 0; p < x.size(); ++p)
      for (size_t i = 0; i < gate.size(); ++i)
        smeared[p][i] = (1 - sigma(gate[i])) * x[p][i] + (p > 0 ? sigma(gate[i]) * x[p - 1][i] : 0);
    return smeared;
  }

  void add_bigrams(NaiveRows& x) {
    int64_t buckets = c_.bigram_vocab_size - 1;
    std::vector<int64_t> index;
    for (size_t p = 0; p < tokens_.size(); ++p) {
      int64_t bucket = buckets;
      if (p > 0) {
        // Products of 16-bit tokens wrapped to int32, by hand.
        auto wrap = [](int64_t v) { return (v + (int64_t{1} << 31)) % (int64_t{1} << 32) - (int64_t{1} << 31); };
        bucket = wrap(int64_t{36313} * tokens_[p]) ^ wrap(int64_t{27191} * tokens_[p - 1]);
        bucket = (bucket % buckets + buckets) % buckets;
      }
      index.push_back(bucket);
    }
    const NaiveRows projected = linear(look_up("bigram.embed.weight", index), "bigram.proj.weight");
    double scale = vector("bigram.scale")[0];
    for (size_t p = 0; p < x.size(); ++p)
      for (size_t i = 0; i < x[p].size(); ++i) x[p][i] += projected[p][i] * scale;
  }

  void add_skip(const NaiveRows& s, int64_t j, NaiveRows& x) const {
    const NaiveRow weight = matrix("skip_weights")[static_cast<size_t>(j)];
    const NaiveRow gate = c_.skip_gates ? matrix("skip_gates")[static_cast<size_t>(j)] : NaiveRow();
    for (size_t p = 0; p < x.size(); ++p) {
      for (size_t i = 0; i < weight.size(); ++i) {
        double skip = weight[i] * s[p][i];
        x[p][i] = c_.skip_gates ? (1 - sigma(gate[i])) * skip + sigma(gate[i]) * x[p][i] : x[p][i] + skip;
      }
    }
  }

  NaiveRows block(int64_t layer, const NaiveRows& x, const NaiveRows& x0) {
    const std::string prefix = "blocks." + std::to_string(layer) + ".";
    double c = c_.ln_scale ? 1 / std::sqrt(static_cast<double>(layer) + 1) : 1;
    const NaiveRows mix = matrix(prefix + "resid_mix");
    NaiveRows u = x, normed;
    for (size_t p = 0; p < u.size(); ++p)
      for (size_t i = 0; i < u[p].size(); ++i) u[p][i] = mix[0][i] * x[p][i] + mix[1][i] * x0[p][i];
    add_scaled(attention(layer, prefix, scaled_norm(u, c)), vector(prefix + "attn_scale"), u);
    add_scaled(mlp(prefix, scaled_norm(u, c)), vector(prefix + "mlp_scale"), u);
    return u;
  }

  static NaiveRows scaled_norm(const NaiveRows& x, double c) {
    NaiveRows y;
    for (const NaiveRow& row : x) {
      y.push_back(rms(row));
      for (double& value : y.back()) value *= c;
    }
    return y;
  }
  static void add_scaled(const NaiveRows& a, const NaiveRow& scale, NaiveRows& x) {
    for (size_t p = 0; p < x.size(); ++p)
      for (size_t i = 0; i < scale.size(); ++i) x[p][i] += scale[i] * a[p][i];
  }

  NaiveRows mlp(const std::string& prefix, const NaiveRows& input) {
    NaiveRows wide = linear(input, prefix + "mlp.fc.weight");
    for (NaiveRow& row : wide)
      for (double& z : row) z = z > 0 ? z * z : 0.25 * z * z;
    return linear(wide, prefix + "mlp.proj.weight");
  }

  NaiveRows attention(int64_t layer, const std::string& prefix, const NaiveRows& input) {
    NaiveRows q = linear(input, prefix + "attn.c_q.weight"), k = linear(input, prefix + "attn.c_k.weight");
    NaiveRows v = linear(input, prefix + "attn.c_v.weight");
    add_value_embedding(layer, v);
    const NaiveRow gain = vector(prefix + "attn.q_gain");
    std::vector<NaiveRows> keys(tokens_.size());  // by position, then by key/value head
    for (size_t j = 0; j < keys.size(); ++j)
      for (int64_t group = 0; group < c_.num_kv_heads; ++group) keys[j].push_back(rotated(head_of(k[j], group), j));
    NaiveRows y;
    for (size_t p = 0; p < tokens_.size(); ++p) {
      y.emplace_back();
      for (int64_t head = 0; head < c_.num_heads; ++head) {
        int64_t group = head / (c_.num_heads / c_.num_kv_heads);
        NaiveRow query = rotated(head_of(q[p], head), p);
        for (double& value : query) value *= gain[static_cast<size_t>(head)];
        NaiveRow weights;
        double sum = 0;
        for (size_t j = 0; j <= p; ++j) {
          double score = dot(query, keys[j][static_cast<size_t>(group)]) / std::sqrt(static_cast<double>(query.size()));
          weights.push_back(std::exp(score));  // scores are small enough for float64
          sum += weights.back();
        }
        NaiveRow mixed(query.size(), 0.0);
        for (size_t j = 0; j <= p; ++j) {
          const NaiveRow value = head_of(v[j], group);
          for (size_t i = 0; i < mixed.size(); ++i) mixed[i] += weights[j] / sum * value[i];
        }
        if (layer >= c_.num_layers - c_.xsa_last_n) remove_component(head_of(v[p], group), mixed);
        y.back().insert(y.back().end(), mixed.begin(), mixed.end());
      }
    }
    return linear(y, prefix + "attn.proj.weight");
  }

  // One matrix for all layers that use it.
  void add_value_embedding(int64_t layer, NaiveRows& v) {
    for (size_t k = 0; k < c_.ve_layers.size(); ++k) {
      if (c_.ve_layers[k] != layer) continue;
      const NaiveRows added = linear(look_up("ve_shared.embed.weight", tokens_), "ve_shared.proj.weight");
      double scale = vector("ve_shared.scale")[0] * vector("ve_layer_scales." + std::to_string(k))[0];
      for (size_t p = 0; p < v.size(); ++p)
        for (size_t i = 0; i < v[p].size(); ++i) v[p][i] += added[p][i] * scale;
    }
  }

  static void remove_component(const NaiveRow& value, NaiveRow& y) {
    double norm = std::max(std::sqrt(dot(value, value)), 1e-12);
    double along = dot(y, value) / norm;
    for (size_t i = 0; i < y.size(); ++i) y[i] -= along * value[i] / norm;
  }

  NaiveRow head_of(const NaiveRow& row, int64_t head) const {
    auto d = c_.model_dim / c_.num_heads;
    return {row.begin() + head * d, row.begin() + (head + 1) * d};
  }

  // rms, then rotation of the first rope_dims dimensions by the position.
  NaiveRow rotated(const NaiveRow& head, size_t position) const {
    auto dims = static_cast<double>(c_.rope_dims), train = static_cast<double>(c_.rope_train_seq_len);
    double base = c_.rope_base;
    if (context_ > c_.rope_train_seq_len) base *= std::pow(static_cast<double>(context_) / train, dims / (dims - 2));
    NaiveRow y = rms(head);
    auto half = static_cast<size_t>(c_.rope_dims / 2);
    for (size_t k = 0; k < half; ++k) {
      double angle = static_cast<double>(position) * std::pow(base, -2 * static_cast<double>(k) / dims);
      double first = y[k], second = y[half + k];
      y[k] = first * std::cos(angle) + second * std::sin(angle);
      y[half + k] = -first * std::sin(angle) + second * std::cos(angle);
    }
    return y;
  }

  const GolfConfig& c_;
  std::span<const Token> tokens_;
  int64_t context_;
};

}  // namespace

NaiveForward naive_golf_forward(const GolfConfig& config, const TensorMap& unbanked, std::span<const Token> tokens,
                                int64_t context_length, const NaiveEdit& edit) {
  return NaiveGolf(config, unbanked, tokens, context_length, edit).run();
}

}  // namespace thimble
