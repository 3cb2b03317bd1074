// toy_decoder.h: a family of models in one file, as docs/families.md walks through it: a small decoder with RMS norms,
// rotary positions, grouped-query attention, a gated MLP and a tied head. tests/runtime/families/toy_decoder_test.cpp
// runs it.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "runtime/families/config_reader.h"
#include "runtime/families/family.h"
#include "runtime/ops/ops.h"

namespace thimble {

// 1. What a config and the shapes of tensors say of a model.
struct ToyConfig {
  int64_t vocab_size = 0, width = 0, layers = 0, mlp_width = 0;  // proven by tensors
  int64_t heads = 0, kv_heads = 0;                               // only the config can tell
  double rope_base = 0, norm_epsilon = 0;

  int64_t head_dim() const { return width / heads; }
  int64_t kv_width() const { return kv_heads * head_dim(); }
};

// 2. The tensors of such a model, and what each is for.
inline std::string toy_name(int64_t layer, const std::string& member) {
  return "layers." + std::to_string(layer) + "." + member + ".weight";
}

inline std::vector<Parameter> toy_parameters(const ToyConfig& c) {
  std::vector<Parameter> parameters = {{"embed.weight", {c.vocab_size, c.width}, Role::kTable}};
  for (int64_t i = 0; i < c.layers; ++i) {
    auto add = [&](const std::string& member, const Shape& shape, Role role) {
      parameters.push_back({toy_name(i, member), shape, role});
    };
    add("norm1", {c.width}, Role::kSmall);
    add("query", {c.width, c.width}, Role::kLinear);
    add("key", {c.kv_width(), c.width}, Role::kLinear);
    add("value", {c.kv_width(), c.width}, Role::kLinear);
    add("out", {c.width, c.width}, Role::kLinear);
    add("norm2", {c.width}, Role::kSmall);
    add("gate", {c.mlp_width, c.width}, Role::kLinear);
    add("up", {c.mlp_width, c.width}, Role::kLinear);
    add("down", {c.width, c.mlp_width}, Role::kLinear);
  }
  parameters.push_back({"norm.weight", {c.width}, Role::kSmall});
  return parameters;
}

// 3. The forward pass, one line for each operation.
inline Network toy_network(const ToyConfig& c) {
  Ops ops(toy_parameters(c));
  const int64_t d = c.head_dim();
  const RotaryId rotary = ops.rotary({d, [c, d](int64_t) {
                                        std::vector<double> frequencies;
                                        for (int64_t k = 0; k < d / 2; ++k)
                                          frequencies.push_back(std::pow(c.rope_base, -2.0 * double(k) / double(d)));
                                        return frequencies;
                                      }});
  auto norm = [&](Value x, const std::string& gain) {
    return ops.rms_norm(x, {.epsilon = static_cast<float>(c.norm_epsilon), .gain = ops.vector(gain)});
  };
  auto rotated = [&](Value x) { return ops.heads(x, {.head_dim = d, .rotary = rotary}); };

  Value x = ops.gather("embed.weight");
  for (int64_t i = 0; i < c.layers; ++i) {
    ops.begin_layer(i);
    auto linear = [&](Value input, const std::string& member) { return ops.linear(input, toy_name(i, member)); };
    Value h = norm(x, toy_name(i, "norm1"));
    const Value y = ops.attention(rotated(linear(h, "query")), rotated(linear(h, "key")), linear(h, "value"),
                                  {.heads = c.heads, .kv_heads = c.kv_heads, .head_dim = d});
    x = ops.add(x, linear(y, "out"), Sum::kAttention);
    h = norm(x, toy_name(i, "norm2"));
    const Value wide = ops.gate(Activation::kSilu, linear(h, "gate"), linear(h, "up"));
    x = ops.add(x, linear(wide, "down"), Sum::kMlp);
  }
  return std::move(ops).head(norm(x, "norm.weight"), "embed.weight");
}

// 4. The family: whose checkpoints these are, and what their config means.
class ToyFamily final : public Family {
 public:
  std::string_view name() const override { return "toy-decoder"; }

  bool has_tensors(const TensorMap& tensors) const override {
    return tensors.contains("embed.weight") && tensors.contains(toy_name(0, "query"));
  }

  // Files hold the parameters under their own names, as (out, in): nothing to map.
  MappedTensors from_file(const TensorMap& tensors, Contents, const std::string&) const override {
    return {tensors, {}, false};
  }
  std::map<std::string, Tensor> to_file(const Spec&, std::map<std::string, Tensor> parameters, bool) const override {
    return parameters;
  }

 protected:
  Spec describe(const Json& config, const TensorMap& parameters, const Where& where) const override {
    const ConfigReader reader(config, where.config);
    auto shape = [&](const std::string& tensor) {
      return find_tensor(parameters, tensor, 2, where.checkpoint, "toy-decoder").shape;
    };
    ToyConfig c;
    c.vocab_size = reader.proven("vocab_size", shape("embed.weight")[0], "embed.weight");
    check_vocabulary(c.vocab_size, "embed.weight", where.checkpoint);
    c.width = reader.proven("width", shape("embed.weight")[1], "embed.weight");
    while (c.layers < kMaxLayers && parameters.contains(toy_name(c.layers, "query"))) ++c.layers;
    c.mlp_width = shape(toy_name(0, "up"))[0];
    c.heads = reader.required<int64_t>("heads", "it says how the width is divided");
    c.kv_heads = reader.optional<int64_t>("kv_heads", c.heads);
    if (c.heads < 1 || c.width % (2 * c.heads) != 0) reader.reject("heads", "what divides the width into even parts");
    if (c.kv_heads < 1 || c.heads % c.kv_heads != 0) reader.reject("kv_heads", "a divisor of the heads");
    c.rope_base = reader.required<double>("rope_base", "it sets the rotary frequencies");
    if (!(c.rope_base > 1)) reader.reject("rope_base", "above 1");
    c.norm_epsilon = reader.required<double>("norm_epsilon", "the norms add it to the mean square");
    if (!(c.norm_epsilon > 0 && c.norm_epsilon < 1)) reader.reject("norm_epsilon", "between 0 and 1");
    return {this, to_json(c), std::nullopt, std::make_shared<const Network>(toy_network(c))};
  }

 private:
  // Canonical: resolve() reads it again from an artifact.
  static Json to_json(const ToyConfig& c) {
    return {{"architecture", "toy-decoder"},
            {"vocab_size", c.vocab_size},
            {"width", c.width},
            {"heads", c.heads},
            {"kv_heads", c.kv_heads},
            {"rope_base", c.rope_base},
            {"norm_epsilon", c.norm_epsilon}};
  }
};

}  // namespace thimble
