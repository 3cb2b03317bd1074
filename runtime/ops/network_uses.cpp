// network_uses.cpp: see network_uses.h.
#include "runtime/ops/network_uses.h"

namespace thimble {

NetworkUses::NetworkUses(const Network& network)
    : head_(network.head.hidden),
      makers_(network.value_widths.size()),
      readers_(network.value_widths.size()),
      uses_(network.matrices.size()) {
  auto use = [&](MatrixId matrix) { ++uses_[static_cast<size_t>(matrix)]; };
  for (size_t i = 0; i < network.nodes.size(); ++i) {
    const Node& node = network.nodes[i];
    makers_[static_cast<size_t>(node.output)] = i;
    for (ValueId input : node.inputs) readers_[static_cast<size_t>(input)].push_back(i);
    if (const auto* linear = std::get_if<op::Linear>(&node.operation)) use(linear->weight);
    if (const auto* gather = std::get_if<op::Gather>(&node.operation)) use(gather->table);
  }
  use(network.head.weight);
}

std::optional<size_t> NetworkUses::only_reader_of(ValueId value) const {
  const std::vector<size_t>& readers = readers_of(value);
  if (readers.size() != 1 || value == head_) return std::nullopt;
  return readers[0];
}

}  // namespace thimble
