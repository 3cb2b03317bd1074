// network.cpp: see network.h.
#include "runtime/ops/network.h"

#include <algorithm>
#include <cassert>

namespace thimble {

MatrixId Network::id_of(const std::string& matrix_name) const {
  const auto found = std::ranges::find(matrices, matrix_name, &MatrixUse::name);
  assert(found != matrices.end());
  return static_cast<MatrixId>(found - matrices.begin());
}

bool Network::is_small(const std::string& parameter) const {
  const auto found = std::ranges::find(parameters, parameter, &Parameter::name);
  return found != parameters.end() && found->role == Role::kSmall;
}

std::vector<LinearInput> Network::linear_inputs() const {
  std::vector<LinearInput> inputs;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const auto* linear = std::get_if<op::Linear>(&nodes[i].operation);
    if (!linear) continue;
    const ValueId value = nodes[i].inputs[0];
    auto found = std::ranges::find(inputs, value, &LinearInput::value);
    if (found == inputs.end()) found = inputs.insert(inputs.end(), {value, i, {}});
    found->readers.push_back(linear->weight);
  }
  return inputs;
}

std::set<std::string> Network::matrix_names() const {
  std::set<std::string> names;
  for (const MatrixUse& matrix : matrices) names.insert(matrix.name);
  return names;
}

std::vector<MatrixId> Network::linear_matrices() const {
  std::vector<MatrixId> found;
  for (const Node& node : nodes)
    if (const auto* linear = std::get_if<op::Linear>(&node.operation))
      if (std::ranges::find(found, linear->weight) == found.end()) found.push_back(linear->weight);
  return found;
}

size_t Network::maker_of(ValueId value) const {
  const auto found = std::ranges::find(nodes, value, &Node::output);
  assert(found != nodes.end());
  return static_cast<size_t>(found - nodes.begin());
}

Network::View Network::view_of(ValueId value) const {
  View view{value, 0};
  while (const auto* columns = std::get_if<op::Columns>(&nodes[maker_of(view.owner)].operation))
    view = {nodes[maker_of(view.owner)].inputs[0], view.first_column + columns->first};
  return view;
}

int64_t home_context(const Network& network, int64_t context) {
  const auto is_home = [&](int64_t length) {
    return std::ranges::all_of(network.rotaries,
                               [&](const RotaryRule& rule) { return rule.frequencies(length) == rule.frequencies(1); });
  };
  int64_t home = 1, beyond = context + 1;  // frequencies change once, if at all
  while (beyond - home > 1) {
    const int64_t middle = home + (beyond - home) / 2;
    (is_home(middle) ? home : beyond) = middle;
  }
  return home;
}

Network network_at(const Network& network, int64_t context) {
  Network result = network;
  for (RotaryRule& rule : result.rotaries)
    rule.frequencies = [at = rule.frequencies, context](int64_t) { return at(context); };
  return result;
}

bool works_in_place(const Operation& operation) {
  return std::holds_alternative<op::Add>(operation) || std::holds_alternative<op::RmsNorm>(operation) ||
         std::holds_alternative<op::LayerNorm>(operation) || std::holds_alternative<op::Heads>(operation) ||
         std::holds_alternative<op::Activate>(operation) || std::holds_alternative<op::Gate>(operation) ||
         std::holds_alternative<op::Mix>(operation) || std::holds_alternative<op::Skip>(operation);
}

bool reads_earlier_rows(const Operation& operation, size_t input) {
  if (std::holds_alternative<op::Attention>(operation)) return input > 0;
  return std::holds_alternative<op::Smear>(operation);
}

}  // namespace thimble
