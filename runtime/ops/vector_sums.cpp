// vector_sums.cpp: see vector_sums.h.
#include "runtime/ops/vector_sums.h"

#include <numeric>
#include <type_traits>

namespace thimble {
namespace {

// The vectors that a node's sums of each kind are for, or take part in.
std::array<VectorId, 2> vectors_of(const Operation& operation) {
  auto visit = [](const auto& o) -> std::array<VectorId, 2> {
    using Op = std::decay_t<decltype(o)>;
    if constexpr (std::is_same_v<Op, op::Linear>) return {o.bias, kAbsent};
    if constexpr (std::is_same_v<Op, op::Add>) return {o.scale, kAbsent};
    if constexpr (std::is_same_v<Op, op::RmsNorm>) return {o.gain, kAbsent};
    if constexpr (std::is_same_v<Op, op::LayerNorm>) return {o.weight, o.bias};
    if constexpr (std::is_same_v<Op, op::Mix>) return {o.first, o.second};
    if constexpr (std::is_same_v<Op, op::Skip>) return {o.weight, o.gate};
    if constexpr (std::is_same_v<Op, op::Smear>) return {o.gate, kAbsent};
    if constexpr (std::is_same_v<Op, op::Heads>) return {o.norm_gain != kAbsent ? o.norm_gain : o.head_gain, kAbsent};
    return {kAbsent, kAbsent};
  };
  return std::visit(visit, operation);
}

}  // namespace

VectorSumLayout::VectorSumLayout(const Network& network) {
  for (const Node& node : network.nodes) {
    std::array<int64_t, 2>& first = first_.emplace_back(std::array<int64_t, 2>{-1, -1});
    const std::array<VectorId, 2> vectors = vectors_of(node.operation);
    for (size_t kind = 0; kind < 2; ++kind) {
      if (vectors[kind] == kAbsent) continue;
      first[kind] = count_;
      count_ += network.width_of(node.output);
    }
  }
}

VectorGradients vector_gradients(const Network& network, std::span<const std::vector<float>> vectors,
                                 std::span<const double> sums) {
  const VectorSumLayout layout(network);
  VectorGradients gradients(network.vectors.size());
  auto add_to = [&](VectorId id, std::span<const double> values) {
    std::vector<double>& to = gradients[static_cast<size_t>(id)];
    to.resize(values.size());
    for (size_t i = 0; i < values.size(); ++i) to[i] += values[i];
  };
  // 1 where there is no such vector.
  auto value = [&](VectorId id, size_t i) {
    return id == kAbsent ? 1.0 : static_cast<double>(vectors[static_cast<size_t>(id)][i]);
  };
  for (size_t i = 0; i < network.nodes.size(); ++i) {
    const Node& node = network.nodes[i];
    const auto width = static_cast<size_t>(network.width_of(node.output));
    auto of = [&](int kind) { return sums.subspan(static_cast<size_t>(layout.first(i, kind)), width); };
    const std::array<VectorId, 2> ids = vectors_of(node.operation);
    if (const auto* add = std::get_if<op::Add>(&node.operation);
        add && add->scale != kAbsent && network.vector(add->scale).count == 1) {
      const double total = std::accumulate(of(0).begin(), of(0).end(), 0.0);
      add_to(add->scale, {&total, 1});
    } else if (const auto* skip = std::get_if<op::Skip>(&node.operation); skip && skip->gate != kAbsent) {
      // y = gate * x + (1 - gate) * (weight * a)
      std::vector<double> by_weight(width), by_gate(width);
      for (size_t c = 0; c < width; ++c) {
        by_weight[c] = of(0)[c] * static_cast<double>(1.0f - vectors[static_cast<size_t>(skip->gate)][c]);
        by_gate[c] = of(1)[c] - value(skip->weight, c) * of(0)[c];
      }
      add_to(skip->weight, by_weight);
      add_to(skip->gate, by_gate);
    } else if (const auto* heads = std::get_if<op::Heads>(&node.operation); heads && ids[0] != kAbsent) {
      const auto d = static_cast<size_t>(heads->head_dim);
      std::vector<double> of_heads(width / d), of_columns(d);
      for (size_t c = 0; c < width; ++c) {
        of_heads[c / d] += of(0)[c] * value(heads->norm_gain, c % d);
        of_columns[c % d] += of(0)[c] * value(heads->head_gain, c / d);
      }
      if (heads->head_gain != kAbsent) add_to(heads->head_gain, of_heads);
      if (heads->norm_gain != kAbsent) add_to(heads->norm_gain, of_columns);
    } else {
      for (int kind = 0; kind < 2; ++kind)
        if (const VectorId id = ids[static_cast<size_t>(kind)]; id != kAbsent) add_to(id, of(kind));
    }
  }
  return gradients;
}

}  // namespace thimble
