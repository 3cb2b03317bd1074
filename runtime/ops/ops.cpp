// ops.cpp: see ops.h. A description that does not fit together is a mistake of the family: an assertion.
#include "runtime/ops/ops.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>

namespace thimble {

Ops::Ops(std::vector<Parameter> parameters) {
  network_.parameters = std::move(parameters);
  for (size_t i = 0; i < network_.parameters.size(); ++i) parameter_of_[network_.parameters[i].name] = i;
}

void Ops::begin_layer(int64_t layer) {
  assert(layer >= layer_);
  layer_ = static_cast<int32_t>(layer);
  network_.layers = layer_ + 1;
}

const Parameter& Ops::parameter(const std::string& name) const {
  const auto found = parameter_of_.find(name);
  assert(found != parameter_of_.end());
  return network_.parameters[found->second];
}

MatrixId Ops::matrix(const std::string& name) {
  auto found = std::ranges::find(network_.matrices, name, &MatrixUse::name);
  if (found == network_.matrices.end()) {
    const Shape& shape = parameter(name).shape;
    assert(shape.size() == 2);
    found = network_.matrices.insert(found, {name, shape[0], shape[1]});
  }
  return static_cast<MatrixId>(found - network_.matrices.begin());
}

Vector Ops::vector(const std::string& name) {
  return vector(VectorRule{.parameter = name, .count = element_count(parameter(name).shape)});
}

Vector Ops::vector(const VectorRule& rule) {
  assert(rule.first + rule.count <= element_count(parameter(rule.parameter).shape));
  auto found = std::ranges::find(network_.vectors, rule);
  if (found == network_.vectors.end()) found = network_.vectors.insert(found, rule);
  return {static_cast<VectorId>(found - network_.vectors.begin())};
}

VectorRule Ops::row(const std::string& name, int64_t row) const {
  const int64_t width = parameter(name).shape.at(1);
  return {.parameter = name, .first = row * width, .count = width};
}

RotaryId Ops::rotary(RotaryRule rule) {
  network_.rotaries.push_back(std::move(rule));
  return static_cast<RotaryId>(network_.rotaries.size()) - 1;
}

Value Ops::append(Operation operation, std::vector<ValueId> inputs, int64_t width) {
  const auto output = static_cast<ValueId>(network_.value_widths.size());
  network_.value_widths.push_back(width);
  network_.nodes.push_back({std::move(operation), std::move(inputs), output, layer_});
  return {output};
}

Value Ops::gather(const std::string& table, RowIndex index, float factor) {
  const MatrixId id = matrix(table);
  return append(op::Gather{id, index, factor}, {}, network_.matrix(id).columns);
}

Value Ops::linear(Value x, const std::string& weight, Vector bias) {
  const MatrixId id = matrix(weight);
  assert(network_.matrix(id).columns == width(x));
  return append(op::Linear{id, bias.id}, {x.id}, network_.matrix(id).rows);
}

Value Ops::add(Value x, Value a, Sum sum, Vector scale) {
  assert(width(x) == width(a));
  return append(op::Add{scale.id, sum}, {x.id, a.id}, width(x));
}

Value Ops::rms_norm(Value x, const op::RmsNorm& norm) { return append(norm, {x.id}, width(x)); }

Value Ops::layer_norm(Value x, Vector weight, Vector bias, float epsilon) {
  return append(op::LayerNorm{weight.id, bias.id, epsilon}, {x.id}, width(x));
}

Value Ops::heads(Value x, const op::Heads& heads) {
  assert(width(x) % heads.head_dim == 0);
  return append(heads, {x.id}, width(x));
}

Value Ops::attention(Value q, Value k, Value v, op::Attention attention) {
  const int64_t d = attention.head_dim;
  assert(width(q) == attention.heads * d && width(k) == attention.kv_heads * d && width(v) == width(k));
  assert(attention.window >= 0);
  if (attention.scale <= 0) attention.scale = 1.0f / std::sqrt(static_cast<float>(d));
  attention.cache = static_cast<int32_t>(network_.cache_widths.size());
  network_.cache_widths.push_back(width(k));
  return append(attention, {q.id, k.id, v.id}, width(q));
}

Value Ops::activate(Activation activation, Value x) { return append(op::Activate{activation}, {x.id}, width(x)); }

Value Ops::gate(Activation activation, Value x, Value a) {
  assert(width(x) == width(a));
  return append(op::Gate{activation}, {x.id, a.id}, width(x));
}

Value Ops::mix(Value x, Vector first, Value a, Vector second) {
  assert(width(x) == width(a));
  return append(op::Mix{first.id, second.id}, {x.id, a.id}, width(x));
}

Value Ops::skip(Value x, Value a, Vector weight, Vector gate) {
  assert(width(x) == width(a));
  return append(op::Skip{weight.id, gate.id}, {x.id, a.id}, width(x));
}

Value Ops::smear(Value x, Vector gate) {
  const auto state = static_cast<int32_t>(network_.state_widths.size());
  network_.state_widths.push_back(width(x));
  return append(op::Smear{gate.id, state}, {x.id}, width(x));
}

Value Ops::columns(Value x, int64_t first, int64_t count) {
  assert(first >= 0 && first + count <= width(x));
  return append(op::Columns{first, count}, {x.id}, count);
}

Network Ops::head(Value hidden, const std::string& weight, float softcap) && {
  const MatrixId id = matrix(weight);
  assert(network_.matrix(id).columns == width(hidden) && !network_.is_view(hidden.id));
  network_.head = {hidden.id, id, softcap};
  return std::move(network_);
}

}  // namespace thimble
