// hessian_tree.h: the order in which a calibration set's parts are added when several devices collect them. Parts are
// the leaves of one binary tree, and a node is the sum of its left and its right half: whoever collects a node's parts
// adds them alike, so that sums are the same bits for any split among devices, which exchange a node or two each
// instead of all parts.
#pragma once

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstddef>
#include <utility>
#include <vector>

#include "runtime/base/parallel.h"

namespace thimble {

// Where a node of at least two parts is cut: its left half is the largest complete tree that leaves something.
inline size_t middle_of(Share node) { return node.begin + std::bit_ceil(node.size()) / 2; }

// The largest nodes below `node` that lie within `share`, in order.
inline void append_nodes_within(Share share, Share node, std::vector<Share>& nodes) {
  if (node.end <= share.begin || share.end <= node.begin) return;
  if (share.begin <= node.begin && node.end <= share.end) return nodes.push_back(node);
  append_nodes_within(share, {node.begin, middle_of(node)}, nodes);
  append_nodes_within(share, {middle_of(node), node.end}, nodes);
}

// The nodes of device `device` of `devices` in a set of `parts` parts.
inline std::vector<Share> nodes_of_device(size_t parts, size_t device, size_t devices) {
  std::vector<Share> nodes;
  if (Share share = share_of(parts, device, devices); share.size() > 0) append_nodes_within(share, {0, parts}, nodes);
  return nodes;
}

// The sum of a node's parts: leaf(part) is one of them, add(left, right) adds the second to the first.
template <typename Leaf, typename Add>
auto sum_of_node(Share node, const Leaf& leaf, const Add& add) -> decltype(leaf(size_t{})) {
  assert(node.size() > 0);
  if (node.size() == 1) return leaf(node.begin);
  auto left = sum_of_node({node.begin, middle_of(node)}, leaf, add);
  add(left, sum_of_node({middle_of(node), node.end}, leaf, add));
  return left;
}

// The sum of `node` from the sums of nodes that cover it, which are used up.
template <typename Sum, typename Add>
Sum join_nodes(Share node, std::vector<std::pair<Share, Sum>>& sums, const Add& add) {
  for (auto& [known, sum] : sums)
    if (known.begin == node.begin && known.end == node.end) return std::move(sum);
  assert(node.size() > 1);
  Sum left = join_nodes({node.begin, middle_of(node)}, sums, add);
  add(left, join_nodes({middle_of(node), node.end}, sums, add));
  return left;
}

// Sums that sum_of_node() holds at once: one for each level of the tree.
inline int64_t live_sums(size_t parts) { return parts == 0 ? 0 : static_cast<int64_t>(std::bit_width(parts)); }

}  // namespace thimble
