// statistics_sum.h: the statistics of a calibration set from those of its parts, so that parts can be collected apart,
// by ranks or on CUDA devices. In: CalibrationStatistics of the parts, in order; or a model and its calibration set.
// Out: those of the whole.
#pragma once

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gptq/statistics/fisher.h"
#include "runtime/base/parallel.h"
#include "runtime/base/progress.h"
#include "runtime/device/device.h"
#include "runtime/ops/token_sequences.h"
#include "runtime/ops/weights.h"

namespace thimble {

// A calibration set is always cut into so many parts, or into single sequences if there are fewer, whoever collects
// them: float64 sums round, and are equal only when equal parts are added in equal order.
constexpr int64_t kMaxHessianParts = 8;
size_t hessian_part_count(int64_t sequences);

// The sequences of part `part`.
Share hessian_part(int64_t sequences, size_t part);

// sum += factor * added, of Hessians of one input. The counts are added as they are.
void add_hessian(Hessian& sum, const Hessian& added, double factor);

// Means of parts are weighted by the tokens behind them:
//   H = (1 / N) * sum over parts p of N_p H_p in float64, N_p the tokens of part p and N those of all
// and so are Fishers; counts are added. At least one part.
class StatisticsSum {
 public:
  // A part whose names or sizes are not the first one's is an Error.
  void add(const CalibrationStatistics& part);

  // The sum is spent afterwards.
  CalibrationStatistics finish() &&;

  // What it consists of, for who keeps it and reads it back.
  friend auto members(StatisticsSum& sum) { return std::tie(sum.hessians_, sum.head_, sum.loss_, sum.is_first_); }

 private:
  void add(const HessianSet& part, HessianSums& sums) const;

  HessianSums hessians_, head_;  // over all tokens so far
  LossStatistics loss_;          // mean_square holds sums
  bool is_first_ = true;
};

// The order in which parts are added when several devices collect them. Parts are the leaves of one binary tree, and a
// node is the sum of its left and its right half: whoever collects a node's parts adds them alike, so that sums are the
// same bits for any split among devices, which exchange a node or two each instead of all parts.

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
// The same of a device that sums nodes one after the other and keeps them.
inline int64_t live_sums(std::span<const Share> nodes) {
  int64_t most = 0;
  for (size_t i = 0; i < nodes.size(); ++i) most = std::max(most, static_cast<int64_t>(i) + live_sums(nodes[i].size()));
  return most;
}
// On the device of `devices` with most of them.
inline int64_t most_live_sums(size_t parts, size_t devices) {
  int64_t most = 1;
  for (size_t device = 0; device < devices; ++device)
    most = std::max(most, live_sums(nodes_of_device(parts, device, devices)));
  return most;
}

// On CUDA devices; a build without CUDA answers with a DeviceError. Both run every sequence, less its last token,
// through the model. Each of `device`'s CUDA devices takes a share of the parts; the result is the same bits for any
// number of devices. Sequences at a time are as many as their memory allows.

// Hessians of `inputs`, up to `sequences` sequences of `length` tokens at a time, of which `live_sums` sets are in
// memory at once; see cuda_models.h for plans.
MemoryPlan plan_hessians(const std::shared_ptr<const Network>& network, Numerics numerics, int64_t length,
                         std::span<const LinearInput> inputs, int64_t sequences, int64_t live_sums,
                         uint64_t usable_bytes);

// The Hessians of these inputs of linear layers. Parts are added in the order of the tree.
HessianSet collect_hessians_cuda(const std::shared_ptr<const Weights>& weights, const Device& device,
                                 const TokenSequences& sequences, std::span<const LinearInput> inputs,
                                 Progress& progress);

// Forward and backward passes over up to `sequences` sequences of `length` tokens at a time, but no more than fill a
// device.
MemoryPlan plan_gradients(const std::shared_ptr<const Network>& network, Numerics numerics, int64_t length,
                          int64_t sequences, uint64_t usable_bytes);

// Back from the loss too, in float32, products in bf16 where that is the device's numerics. Parts are added in order. A
// gradient that is not finite is an Error (bad input) that names matrix, sequence, position and output.
LossStatistics collect_loss_statistics_cuda(const std::shared_ptr<const Weights>& weights, const Device& device,
                                            const TokenSequences& sequences, Progress& progress);

}  // namespace thimble
