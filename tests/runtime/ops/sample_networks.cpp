// sample_networks.cpp: see sample_networks.h.
#include "tests/runtime/ops/sample_networks.h"

#include <cmath>

#include "runtime/base/random.h"
#include "runtime/ops/ops.h"

namespace thimble {
namespace {

constexpr float kEpsilon = 1e-5f;
// Norms one after another do not make numbers of the roundings of a zero.
constexpr float kLargeEpsilon = 1;
constexpr int64_t kVocabulary = 13, kPositions = 40;

RotaryRule rotary_of_four() {
  return {4, [](int64_t context) { return std::vector<double>{1, 1 / std::sqrt(static_cast<double>(context))}; }};
}

VectorRule sigmoid(const std::string& parameter, int64_t count) {
  return {.parameter = parameter, .count = count, .sigmoid = true};
}

std::vector<Parameter> parameters_of_every_operation() {
  return {{"words", {kVocabulary, 12}, Role::kTable},
          {"pairs", {7, 6}, Role::kTable},
          {"pairs_up", {12, 6}, Role::kLinear},
          {"pairs_scale", {}},
          {"places", {kPositions, 12}, Role::kTable},
          {"smear_gate", {12}},
          {"norm.weight", {12}},
          {"norm.bias", {12}},
          {"qkv", {24, 12}, Role::kLinear},
          {"qkv.bias", {24}},
          {"query_norm", {6}},
          {"query_gain", {2}},
          {"out", {12, 12}, Role::kLinear},
          {"branch_scale", {12}},
          {"mix", {2, 12}},
          {"gain", {12}},
          {"gate", {20, 12}, Role::kLinear},
          {"up", {20, 12}, Role::kLinear},
          {"down", {12, 20}, Role::kLinear},
          {"skips", {2, 12}},
          {"skip_gate", {12}},
          {"common_scale", {1}}};
}

// Its parameters are those that any choice of operations may read.
class RandomWriter {
 public:
  explicit RandomWriter(uint64_t seed)
      : seed_(seed),
        ops_({{"words", {kVocabulary, 8}, Role::kTable},
              {"places", {kPositions, 8}, Role::kTable},
              {"square", {8, 8}, Role::kLinear},
              {"other", {8, 8}, Role::kLinear},
              {"from_four", {8, 4}, Role::kLinear},
              {"bias", {8}},
              {"vector", {8}},
              {"second", {8}},
              {"heads", {2}},
              {"norm", {4}},
              {"scalar", {1}}}),
        rotary_(ops_.rotary(rotary_of_four())) {}

  Network write() && {
    values_ = {ops_.gather("words", {}, 1.5f), ops_.gather("places", {RowIndex::Kind::kPosition})};
    const uint64_t count = 4 + draw(8);
    for (uint64_t i = 0; i < count; ++i) {
      if (i == count / 2) ops_.begin_layer(0);
      // Of a scale that no operation takes out of the reach of float32.
      values_.push_back(ops_.rms_norm(operation(), {.epsilon = kLargeEpsilon}));
    }
    const Value end = draw(4) == 0 ? any() : values_.back();  // operations after it are for nothing
    return std::move(ops_).head(end, "words");
  }

 private:
  uint64_t draw(uint64_t count) {
    return static_cast<uint64_t>(uniform_at(seed_, 3, next_++) * static_cast<double>(count));
  }
  // Any value, late ones more often.
  Value any() { return values_[std::max(draw(values_.size()), draw(values_.size()))]; }
  Vector gate() { return ops_.vector(sigmoid("second", 8)); }

  Value operation() {
    const Value x = any(), a = any(), b = any();
    switch (draw(15)) {
      case 0: return ops_.linear(x, "square", ops_.vector("bias"));
      case 1: return ops_.linear(x, "other");
      case 2: return ops_.add(x, a, Sum::kMlp, ops_.vector("scalar"));
      case 3: return ops_.add(x, a, Sum::kMlp);
      case 4: return ops_.layer_norm(x, ops_.vector("vector"), ops_.vector("bias"), kLargeEpsilon);
      case 5:
        return ops_.heads(x, {.head_dim = 4,
                              .epsilon = kLargeEpsilon,
                              .norm_gain = ops_.vector("norm"),
                              .rotary = rotary_,
                              .head_gain = ops_.vector("heads")});
      case 6: return ops_.attention(x, a, b, {.heads = 2, .kv_heads = 2, .head_dim = 4, .window = 3});
      case 7:
        return ops_.attention(x, ops_.columns(a, 0, 4), ops_.columns(b, 4, 4),
                              {.heads = 2, .kv_heads = 1, .head_dim = 4, .exclusive = true});
      case 8: return ops_.activate(Activation::kGeluTanh, x);
      case 9: return ops_.gate(Activation::kSilu, x, a);
      case 10: return ops_.mix(x, ops_.vector("vector"), a, ops_.vector("second"));
      case 11: return ops_.skip(x, a, ops_.vector("vector"), gate());
      case 12: return ops_.skip(x, a, ops_.vector("vector"));
      case 13: return ops_.smear(x, gate());
      default: return ops_.linear(ops_.columns(x, static_cast<int64_t>(draw(5)), 4), "from_four");
    }
  }

  const uint64_t seed_;
  uint64_t next_ = 0;
  Ops ops_;
  RotaryId rotary_;
  std::vector<Value> values_;
};

}  // namespace

Network network_of_every_operation() {
  Ops ops(parameters_of_every_operation());
  const RotaryId rotary = ops.rotary(rotary_of_four());
  const Value pairs = ops.linear(ops.gather("pairs", {RowIndex::Kind::kTokenPair, 7}), "pairs_up");
  Value x = ops.add(ops.gather("words"), pairs, Sum::kEmbedding, ops.vector("pairs_scale"));
  x = ops.add(x, ops.gather("places", {RowIndex::Kind::kPosition}), Sum::kEmbedding);
  x = ops.smear(x, ops.vector(sigmoid("smear_gate", 12)));
  const Value start = x;

  ops.begin_layer(0);
  const Value h = ops.layer_norm(x, ops.vector("norm.weight"), ops.vector("norm.bias"), kEpsilon);
  const Value qkv = ops.linear(h, "qkv", ops.vector("qkv.bias"));
  const Value q = ops.heads(ops.columns(qkv, 0, 12), {.head_dim = 6,
                                                      .epsilon = kEpsilon,
                                                      .norm_gain = ops.vector("query_norm"),
                                                      .rotary = rotary,
                                                      .head_gain = ops.vector("query_gain")});
  const Value k = ops.heads(ops.columns(qkv, 12, 6), {.head_dim = 6, .rotary = rotary});
  const Value y = ops.attention(q, k, ops.columns(qkv, 18, 6),
                                {.heads = 2, .kv_heads = 1, .head_dim = 6, .scale = 0.7f, .exclusive = true});
  x = ops.add(x, ops.linear(y, "out"), Sum::kAttention, ops.vector("branch_scale"));
  x = ops.mix(x, ops.vector(ops.row("mix", 0)), start, ops.vector(ops.row("mix", 1)));
  const Value kept = x;

  ops.begin_layer(1);
  const Value normed = ops.rms_norm(x, {.epsilon = kEpsilon, .factor = 0.5f, .gain = ops.vector("gain")});
  const Value wide = ops.gate(Activation::kSilu, ops.linear(normed, "gate"), ops.linear(normed, "up"));
  x = ops.add(x, ops.linear(wide, "down"), Sum::kMlp);
  VectorRule gate = sigmoid("skip_gate", 12);
  gate.times = "common_scale";
  gate.plus = -0.25f;
  x = ops.skip(x, kept, ops.vector(ops.row("skips", 0)), ops.vector(gate));
  x = ops.skip(x, start, ops.vector(ops.row("skips", 1)));
  const Value squared = ops.activate(Activation::kLeakyReluSquared, ops.linear(x, "up"));
  x = ops.add(x, ops.linear(ops.activate(Activation::kGeluTanh, squared), "down"), Sum::kMlp);
  return std::move(ops).head(ops.rms_norm(x, {.epsilon = kEpsilon}), "words", 5);
}

Network random_network(uint64_t seed) { return RandomWriter(seed).write(); }

std::shared_ptr<const Weights> random_weights(Network network, uint64_t seed) {
  FloatTensors tensors;
  uint64_t stream = 0;
  for (const Parameter& parameter : network.parameters) {
    std::vector<float>& values = tensors[parameter.name];
    const bool is_small = parameter.role == Role::kSmall;
    const double half_width = is_small ? 0.5
                              : parameter.role == Role::kTable
                                  ? 1
                                  : std::sqrt(3.0 / static_cast<double>(parameter.shape[1]));
    for (int64_t i = 0; i < element_count(parameter.shape); ++i)
      values.push_back(static_cast<float>((is_small ? 0.8 : 0) +
                                          half_width * (2 * uniform_at(seed, stream, static_cast<uint64_t>(i)) - 1)));
    ++stream;
  }
  return std::make_shared<const Weights>(
      bind_weights(std::make_shared<const Network>(std::move(network)), std::move(tensors)));
}

}  // namespace thimble
